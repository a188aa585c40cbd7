#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/arrow_column_internal.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {
namespace {

using detail::ColumnBuilder;
using detail::ColumnLayout;

[[noreturn]] void unreadable(const std::string& path, const std::string& reason) {
  throw DataError({.what = concat(path, " can't be read as Parquet: ", trim(reason))});
}

template <class T>
T value_of(arrow::Result<T> result, const std::string& path) {
  if (!result.ok()) unreadable(path, result.status().message());
  return std::move(result).ValueUnsafe();
}

// A column of a file: a field of its schema, or one inside a struct, whose name is then "struct.field".
struct Leaf {
  std::vector<std::string> path;  // names from the top field down
  std::shared_ptr<arrow::DataType> type;
  std::vector<int> parquet_columns;  // what Parquet stores it as

  std::string name() const { return join(path, "."); }
};

void collect_columns(const parquet::arrow::SchemaField& field, std::vector<int>& out) {
  if (field.is_leaf()) out.push_back(field.column_index);
  for (const auto& child : field.children) collect_columns(child, out);
}

void collect_leaves(const parquet::arrow::SchemaField& field, std::vector<std::string> path,
                    std::vector<Leaf>& out) {
  path.push_back(field.field->name());
  if (field.field->type()->id() == arrow::Type::STRUCT) {
    for (const auto& child : field.children) collect_leaves(child, path, out);
    return;
  }
  Leaf leaf{.path = std::move(path), .type = field.field->type(), .parquet_columns = {}};
  collect_columns(field, leaf.parquet_columns);
  out.push_back(std::move(leaf));
}

// The wanted columns, all where none are named; in the order of their names.
std::vector<Leaf> select(std::vector<Leaf> leaves, const std::vector<std::string>& wanted,
                         const std::string& path) {
  std::vector<std::string> names;
  for (const Leaf& leaf : leaves) names.push_back(leaf.name());
  std::set<std::string> chosen;
  for (const std::string& name : wanted) {
    const auto fits = [&](const std::string& leaf) { return leaf == name || leaf.starts_with(name + "."); };
    if (std::none_of(names.begin(), names.end(), fits)) {
      const auto near = nearest_name(name, names);
      throw DataError({.what = concat(path, " has no column called '", name, "'"),
                       .expected = concat("one of ", join(names, ", ")),
                       .hint = near ? concat("Did you mean '", *near, "'?") : ""});
    }
    std::copy_if(names.begin(), names.end(), std::inserter(chosen, chosen.end()), fits);
  }
  if (!wanted.empty()) std::erase_if(leaves, [&](const Leaf& leaf) { return !chosen.contains(leaf.name()); });
  std::sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) { return a.name() < b.name(); });
  const auto twice = std::adjacent_find(leaves.begin(), leaves.end(),
                                        [](const Leaf& a, const Leaf& b) { return a.name() == b.name(); });
  if (twice != leaves.end())
    throw DataError({.what = concat(path, " has two columns called '", twice->name(), "'")});
  return leaves;
}

class ParquetFile {
 public:
  // Reads the end of the file only. `metadata` from an earlier time spares that.
  explicit ParquetFile(const std::string& path, std::shared_ptr<parquet::FileMetaData> metadata = nullptr)
      : path_(path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0)
      throw DataError({.what = "opening " + path, .got = errno_text(errno), .hint = "Check the path."});
    if (!S_ISREG(info.st_mode)) throw DataError({.what = path, .expected = "a file", .got = "a device"});
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);  // where the file has checksums
    parquet::arrow::FileReaderBuilder builder;
    const arrow::Status status = builder.OpenFile(path, false, properties, std::move(metadata));
    if (!status.ok()) unreadable(path, status.message());
    // Columns are decoded side by side; see Arrow's OMP_NUM_THREADS.
    builder.properties(parquet::ArrowReaderProperties(/*use_threads=*/true));
    reader_ = value_of(builder.Build(), path);
  }

  std::shared_ptr<parquet::FileMetaData> metadata() const { return reader_->parquet_reader()->metadata(); }

  std::vector<Leaf> leaves(const std::vector<std::string>& wanted) const {
    std::vector<Leaf> out;
    for (const auto& field : reader_->manifest().schema_fields) collect_leaves(field, {}, out);
    return select(std::move(out), wanted, path_);
  }

  // One row group after the other, so that only one is there in Arrow's form beside the result.
  void read(const std::vector<Leaf>& leaves, std::vector<ColumnBuilder>& builders) const {
    std::vector<int> columns;
    for (const Leaf& leaf : leaves)
      columns.insert(columns.end(), leaf.parquet_columns.begin(), leaf.parquet_columns.end());
    for (ColumnBuilder& builder : builders) builder.begin_file(path_);
    for (int group = 0; group < reader_->num_row_groups(); ++group) {
      const auto table = value_of(reader_->ReadRowGroup(group, columns), path_);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const auto column = table->GetColumnByName(leaves[i].path.front());
        if (column == nullptr) unreadable(path_, concat("column '", leaves[i].name(), "' is not there"));
        for (const auto& chunk : column->chunks()) builders[i].append(*descend(chunk, leaves[i]));
      }
    }
  }

 private:
  // The array inside structs; a missing struct is a missing value in each of its fields.
  std::shared_ptr<arrow::Array> descend(std::shared_ptr<arrow::Array> array, const Leaf& leaf) const {
    for (size_t depth = 1; depth < leaf.path.size(); ++depth) {
      const auto& fields = static_cast<const arrow::StructArray&>(*array);
      const int index = fields.struct_type()->GetFieldIndex(leaf.path[depth]);
      if (index < 0) unreadable(path_, concat("column '", leaf.name(), "' is not there"));
      array = value_of(fields.GetFlattenedField(index), path_);
    }
    return array;
  }

  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
};

// The file itself, or the part files of a folder.
std::vector<std::string> files_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    // Spark and pandas keep notes under names that begin like this.
    if (name.starts_with('.') || name.starts_with('_') || entry.is_directory()) continue;
    if (to_lower(entry.path().extension().string()) == ".parquet") files.push_back(entry.path().string());
  }
  if (files.empty())
    throw DataError({.what = path, .expected = "files called *.parquet in this folder", .got = "none"});
  std::sort(files.begin(), files.end());
  return files;
}

// Whatever Arrow or the standard library throws over a damaged file becomes an error that names it.
template <class Action>
auto naming(const std::string& path, Action&& action) {
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    unreadable(path, error_message(error));
  }
}

// All files to join, checked to have the same columns before the first row is read.
class Plan {
 public:
  explicit Plan(const std::vector<std::string>& wanted) : wanted_(wanted) {}

  void add(const std::string& path) {
    const ParquetFile file(path);
    Part part{.path = path, .metadata = file.metadata(), .leaves = file.leaves(wanted_)};
    std::vector<std::string> names;
    for (const Leaf& leaf : part.leaves) names.push_back(leaf.name());
    const bool first = parts_.empty();
    if (first) names_ = names;
    if (names != names_) {
      throw DataError({.what = concat(path, ": its columns"),
                       .expected = concat(join(names_, ", "), ", as in ", parts_.front().path),
                       .got = join(names, ", "),
                       .hint = "Name columns that all files have in ParquetOptions::columns."});
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string where = concat(path, ": column '", names[i], "'");
      ColumnLayout layout = detail::column_layout(*part.leaves[i].type, where);
      if (first) {
        layouts_.push_back(std::move(layout));
      } else if (layout != layouts_[i]) {
        throw DataError(
            {.what = where,
             .expected = concat(detail::layout_text(layouts_[i]), ", as in ", parts_.front().path),
             .got = detail::layout_text(layout)});
      }
    }
    const int64_t rows = part.metadata->num_rows();
    if (rows < 0 || rows > std::numeric_limits<int64_t>::max() / 16 - rows_)
      unreadable(path, concat("it promises ", rows, " rows"));
    rows_ += rows;
    parts_.push_back(std::move(part));
  }

  ColumnDict read() const {
    std::vector<ColumnBuilder> builders;
    for (size_t i = 0; i < names_.size(); ++i) builders.emplace_back(names_[i], layouts_[i], rows_);
    for (const Part& part : parts_)
      naming(part.path, [&] { ParquetFile(part.path, part.metadata).read(part.leaves, builders); });
    ColumnDict columns;
    for (size_t i = 0; i < names_.size(); ++i) columns.emplace(names_[i], builders[i].finish());
    return columns;
  }

 private:
  struct Part {
    std::string path;
    std::shared_ptr<parquet::FileMetaData> metadata;
    std::vector<Leaf> leaves;
  };

  const std::vector<std::string>& wanted_;
  std::vector<Part> parts_;
  std::vector<std::string> names_;
  std::vector<ColumnLayout> layouts_;
  int64_t rows_ = 0;
};

}  // namespace

ColumnDict load_parquet(const std::string& path, const ParquetOptions& options) {
  return naming(path, [&] {
    Plan plan(options.columns);
    for (const std::string& file : files_of(path)) naming(file, [&] { plan.add(file); });
    ColumnDict columns = plan.read();
    // Arrow's allocator keeps what it freed.
    arrow::default_memory_pool()->ReleaseUnused();
    return columns;
  });
}

bool has_parquet() {
  return true;
}

}  // namespace accelerate
