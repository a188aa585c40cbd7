#include <ATen/Functions.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/gzip.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {
namespace {

// Splits one line into fields; quotes may surround a field and are doubled inside it.
class LineSplitter {
 public:
  LineSplitter(std::string_view line, char delimiter) : line_(line), delimiter_(delimiter) {}

  // False after the last field. A line always has one field at least.
  bool next(std::string_view& field) {
    if (done_) return false;
    size_t at = at_;
    while (at < line_.size() && (line_[at] == ' ' || line_[at] == '\t') && line_[at] != delimiter_) ++at;
    if (at < line_.size() && line_[at] == '"') {
      unquoted_.clear();
      for (++at; at < line_.size(); ++at) {
        if (line_[at] == '"' && at + 1 < line_.size() && line_[at + 1] == '"')
          ++at;
        else if (line_[at] == '"')
          break;
        unquoted_ += line_[at];
      }
      field = unquoted_;
      at = line_.find(delimiter_, at);
    } else {
      const size_t end = line_.find(delimiter_, at);
      field = line_.substr(at, end == std::string_view::npos ? end : end - at);
      at = end;
    }
    done_ = at == std::string_view::npos;
    at_ = done_ ? line_.size() : at + 1;
    return true;
  }

 private:
  std::string_view line_;
  char delimiter_;
  size_t at_ = 0;
  bool done_ = false;
  std::string unquoted_;
};

std::optional<double> field_value(std::string_view field) {
  while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
  if (field.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (field.front() == '+') field.remove_prefix(1);
  double value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (stop != field.data() + field.size() ||
      (error != std::errc() && error != std::errc::result_out_of_range)) {
    return std::nullopt;
  }
  // Too large is infinite and too small is 0, as in Python; from_chars leaves that to us.
  if (error == std::errc::result_out_of_range) return std::strtod(std::string(field).c_str(), nullptr);
  return value;
}

bool all_numbers(std::string_view line, char delimiter) {
  LineSplitter splitter(line, delimiter);
  for (std::string_view field; splitter.next(field);) {
    if (!field_value(field)) return false;
  }
  return true;
}

}  // namespace

at::Tensor CsvTable::column(const std::string& name) const {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return values.select(1, static_cast<int64_t>(i));
  }
  const auto near = nearest_name(name, names);
  throw DataError({.what = concat("the table has no column called '", name, "'"),
                   .expected = names.empty() ? "a file with a header" : concat("one of ", join(names, ", ")),
                   .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

CsvTable load_csv(const std::string& path, const CsvOptions& options) {
  const std::string text = detail::read_maybe_gzipped(path);
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  CsvTable table;
  std::vector<double> values;
  int64_t columns = -1;
  int64_t rows = 0;
  bool first = true;
  for (int64_t line_number = 1; !rest.empty(); ++line_number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const bool header = first && options.header.value_or(!all_numbers(line, options.delimiter));
    first = false;
    LineSplitter splitter(line, options.delimiter);
    int64_t column = 0;
    for (std::string_view field; splitter.next(field); ++column) {
      if (header) {
        table.names.push_back(trim(field));
        continue;
      }
      const auto value = field_value(field);
      if (!value) {
        throw DataError({.what = concat(path, ":", line_number, ": column ", column + 1),
                         .expected = "a number",
                         .got = concat("'", field.substr(0, 40), "'"),
                         .hint = "Replace words by numbers first, or give another delimiter."});
      }
      values.push_back(*value);
    }
    if (columns >= 0 && column != columns) {
      throw DataError({.what = concat(path, ":", line_number),
                       .expected = concat(columns, " fields, as in the lines before"),
                       .got = std::to_string(column)});
    }
    columns = column;
    if (!header) ++rows;
  }
  if (columns < 0) throw DataError({.what = concat(path, " is empty")});
  table.values = at::empty({rows, columns}, at::TensorOptions(at::kDouble));
  std::copy(values.begin(), values.end(), table.values.mutable_data_ptr<double>());
  return table;
}

}  // namespace accelerate
