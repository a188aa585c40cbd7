// Parquet files written by pyarrow come in with Python's values; a build without Parquet says so.
#include "accelerate/data/sources/sources.h"

#include <cmath>
#include <fstream>
#include <map>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "support/python_files.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;

#ifndef ACCELERATE_TEST_WITH_PARQUET

TEST_CASE("a build without Parquet says how to get it") {
  CHECK_FALSE(has_parquet());
  CHECK_THAT(test::error_of<DataError>([] { load_parquet("x.parquet"); }),
             ContainsSubstring("this build of accelerate can't read Parquet (x.parquet)") &&
                 ContainsSubstring("third_party/setup.sh --parquet"));
}

#else

namespace {

class ParquetFiles : public test::PythonFiles {
 public:
  explicit ParquetFiles(const std::string& script)
      : test::PythonFiles(
            "ACCELERATE_TEST_ARROW_PYTHON",
            "import datetime as dt, math\nimport pyarrow as pa, pyarrow.parquet as pq\n" + script) {}
};

at::Tensor tensor_of(const ColumnDict& columns, const std::string& name) {
  return std::get<at::Tensor>(columns.at(name));
}

Ragged ragged_of(const ColumnDict& columns, const std::string& name) {
  const auto ragged = std::get<Ragged>(columns.at(name));
  ragged.check(name);
  return ragged;
}

std::string text_of(const at::Tensor& row) {
  return {static_cast<const char*>(row.const_data_ptr()), static_cast<size_t>(row.numel())};
}

std::vector<std::string> texts_of(const Ragged& ragged) {
  std::vector<std::string> out;
  for (int64_t i = 0; i < ragged.size(); ++i) out.push_back(text_of(ragged.row(i)));
  return out;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("Parquet numbers keep their dtype, over row groups and compressions") {
  // 1000 rows in groups of 7: bits and offsets that begin inside a byte.
  const ParquetFiles files(R"(
n = 1000
table = pa.table({
    'i8': pa.array([i % 256 - 128 for i in range(n)], pa.int8()),
    'i16': pa.array([i * 65 - 32768 for i in range(n)], pa.int16()),
    'i32': pa.array([i * 4294967 - 2**31 for i in range(n)], pa.int32()),
    'i64': pa.array([i * 2**53 - 2**62 for i in range(n)], pa.int64()),
    'u8': pa.array([i % 256 for i in range(n)], pa.uint8()),
    'u16': pa.array([i * 65 for i in range(n)], pa.uint16()),
    'u32': pa.array([i * 4294967 for i in range(n)], pa.uint32()),
    'u64': pa.array([2**64 - 1 - i for i in range(n)], pa.uint64()),
    'f16': pa.array([i / 8 for i in range(n)], pa.float32()).cast(pa.float16()),
    'f32': pa.array([i / 8 for i in range(n)], pa.float32()),
    'f64': pa.array([i / 8 for i in range(n)], pa.float64()),
    'b': pa.array([i % 3 == 0 for i in range(n)], pa.bool_()),
    'coded': pa.array([i % 5 for i in range(n)], pa.int64()).dictionary_encode(),
})
for codec in ['none', 'snappy', 'zstd', 'gzip', 'brotli', 'lz4']:
    pq.write_table(table, codec, compression=codec, row_group_size=7, write_page_checksum=codec == 'zstd')
pq.write_table(table, 'one', row_group_size=n, data_page_version='2.0', use_dictionary=False, store_schema=False)
pq.write_table(table.slice(0, 0), 'empty')
)");
  const auto n = torch::arange(1000);
  const std::map<std::string, at::Tensor> want{{"i8", (n.remainder(256) - 128).to(torch::kChar)},
                                               {"i16", (n * 65 - 32768).to(torch::kShort)},
                                               {"i32", (n * 4294967 - 2147483648).to(torch::kInt)},
                                               {"i64", n * (int64_t{1} << 53) - (int64_t{1} << 62)},
                                               {"u8", n.remainder(256).to(torch::kByte)},
                                               {"u16", (n * 65).to(torch::kUInt16)},
                                               {"u32", (n * 4294967).to(torch::kUInt32)},
                                               {"u64", (-1 - n).view(torch::kUInt64)},
                                               {"f16", (n / 8.0).to(torch::kHalf)},
                                               {"f32", (n / 8.0).to(torch::kFloat)},
                                               {"f64", n.to(torch::kDouble) / 8.0},
                                               {"b", n.remainder(3) == 0},
                                               {"coded", n.remainder(5)}};
  int checked = 0;
  for (const char* file : {"none", "snappy", "zstd", "gzip", "brotli", "lz4", "one"}) {
    const ColumnDict columns = load_parquet(files / file);
    CHECK(columns.size() == want.size());
    for (const auto& [name, values] : want) {
      INFO(file << " " << name);
      const at::Tensor got = tensor_of(columns, name);
      CHECK(got.scalar_type() == values.scalar_type());
      CHECK(got.sizes() == values.sizes());
      // Bytes, since torch compares no unsigned numbers of more than 8 bits.
      CHECK(got.view(torch::kByte).equal(values.view(torch::kByte)));
      ++checked;
    }
  }
  CHECK(checked == 91);
  const ColumnDict empty = load_parquet(files / "empty");
  CHECK(empty.size() == want.size());
  for (const auto& [name, values] : want) CHECK(tensor_of(empty, name).sizes() == at::IntArrayRef({0}));
}

TEST_CASE("Parquet dates and times are whole numbers in the column's unit") {
  const ParquetFiles files(R"(
days = [dt.date(1970, 1, 2), dt.date(1969, 12, 31), dt.date(2026, 12, 1)]
times = [dt.datetime(2001, 9, 9, 1, 46, 40), dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(1970, 1, 1, 0, 0, 0, 1000)]
columns = {'d32': pa.array(days, pa.date32()), 'd64': pa.array(days, pa.date64()),
           't32': pa.array([1, 2, 86399999], pa.time32('ms')), 't64': pa.array([1, 2, 3], pa.time64('ns')),
           'span': pa.array([5, -5, 0], pa.duration('us')),
           'utc': pa.array(times, pa.timestamp('ms', tz='Europe/Paris'))}
for unit in ['ms', 'us', 'ns']:
    columns[unit] = pa.array(times, pa.timestamp(unit))
pq.write_table(pa.table(columns), 'times')
)");
  const ColumnDict columns = load_parquet(files / "times");
  const auto days = torch::tensor({1, -1, 20788}, torch::kLong);
  CHECK(tensor_of(columns, "d32").equal(days));
  CHECK(tensor_of(columns, "d64").equal(days));
  CHECK(tensor_of(columns, "t32").equal(torch::tensor({1, 2, 86399999}, torch::kLong)));
  CHECK(tensor_of(columns, "t64").equal(torch::tensor({1, 2, 3}, torch::kLong)));
  CHECK(tensor_of(columns, "span").equal(torch::tensor({5, -5, 0}, torch::kLong)));
  const auto ms = torch::tensor({1000000000000, int64_t{-1000}, int64_t{1}}, torch::kLong);
  CHECK(tensor_of(columns, "ms").equal(ms));
  CHECK(tensor_of(columns, "utc").equal(ms));
  CHECK(tensor_of(columns, "us").equal(ms * 1000));
  CHECK(tensor_of(columns, "ns").equal(ms * 1000000));
}

TEST_CASE("Parquet text, bytes, dictionaries, lists and structs") {
  const ParquetFiles files(R"(
words = ['', 'a', 'zwölf', 'x' * 300, 'a', '']
n = len(words)
table = pa.table({
    'string': pa.array(words), 'large': pa.array(words, pa.large_string()), 'view': pa.array(words, pa.string_view()),
    'binary': pa.array([w.encode() + b'\0\xff' for w in words], pa.binary()),
    'coded': pa.array(words).dictionary_encode(),
    'fixed': pa.array([bytes([i, 255 - i, 7]) for i in range(n)], pa.binary(3)),
    'list': pa.array([list(range(i)) for i in range(n)], pa.list_(pa.int32())),
    'large_list': pa.array([[i / 2] * (n - i) for i in range(n)], pa.large_list(pa.float64())),
    'bools': pa.array([[j % 2 == 0 for j in range(3 * i)] for i in range(n)], pa.list_(pa.bool_())),
    'triple': pa.array([[i, i + 1, i + 2] for i in range(n)], pa.list_(pa.float32(), 3)),
    'matrix': pa.array([[[i, 1], [2, 3], [4, 5]] for i in range(n)], pa.list_(pa.list_(pa.int16(), 2), 3)),
    'tensor': pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [2, 3]),
                                             pa.array([[i] * 3 + [0] * 3 for i in range(n)], pa.list_(pa.uint8(), 6))),
    'points': pa.array([[[j, i] for j in range(i)] for i in range(n)], pa.list_(pa.list_(pa.int64(), 2))),
    'image': pa.array([{'bytes': b'P' * i, 'size': {'h': i, 'w': 2 * i}} for i in range(n)]),
})
pq.write_table(table, 'one')
pq.write_table(table, 'many', row_group_size=2)
pq.write_table(table.drop_columns(['view', 'matrix', 'points', 'tensor']), 'plain', store_schema=False)
pq.write_table(table.slice(0, 0), 'empty')
)");
  const std::vector<std::string> words{"", "a", "zwölf", std::string(300, 'x'), "a", ""};
  std::vector<std::string> bytes = words;
  for (std::string& word : bytes) word += std::string("\0\xff", 2);
  const auto n = torch::arange(6);
  for (const char* file : {"one", "many", "plain"}) {
    INFO(file);
    const ColumnDict columns = load_parquet(files / file);
    for (const char* name : {"string", "large", "coded"}) CHECK(texts_of(ragged_of(columns, name)) == words);
    if (columns.contains("view")) CHECK(texts_of(ragged_of(columns, "view")) == words);
    CHECK(texts_of(ragged_of(columns, "binary")) == bytes);
    CHECK(tensor_of(columns, "fixed").equal(torch::stack({n, 255 - n, n * 0 + 7}, 1).to(torch::kByte)));
    const Ragged list = ragged_of(columns, "list");
    const Ragged large = ragged_of(columns, "large_list");
    const Ragged bools = ragged_of(columns, "bools");
    for (int64_t i = 0; i < 6; ++i) {
      CHECK(list.row(i).equal(torch::arange(i).to(torch::kInt)));
      CHECK(large.row(i).equal(torch::full({6 - i}, static_cast<double>(i) / 2, torch::kDouble)));
      CHECK(bools.row(i).equal(torch::arange(3 * i).remainder(2) == 0));
    }
    CHECK(texts_of(ragged_of(columns, "image.bytes")) ==
          std::vector<std::string>{"", "P", "PP", "PPP", "PPPP", "PPPPP"});
    CHECK(tensor_of(columns, "image.size.w").equal(2 * n));
    if (std::string(file) == "plain") continue;  // Parquet itself knows no lists of a fixed size
    CHECK(tensor_of(columns, "triple").equal(torch::stack({n, n + 1, n + 2}, 1).to(torch::kFloat)));
    const at::Tensor matrix = tensor_of(columns, "matrix");
    CHECK(matrix.sizes() == at::IntArrayRef({6, 3, 2}));
    CHECK(matrix.scalar_type() == torch::kShort);
    CHECK(matrix[4].equal(torch::tensor({{4, 1}, {2, 3}, {4, 5}}, torch::kShort)));
    CHECK(tensor_of(columns, "tensor").sizes() == at::IntArrayRef({6, 2, 3}));
    CHECK(tensor_of(columns, "tensor")[5].equal(torch::tensor({{5, 5, 5}, {0, 0, 0}}, torch::kByte)));
    const Ragged points = ragged_of(columns, "points");
    CHECK(points.row(0).sizes() == at::IntArrayRef({0, 2}));
    CHECK(points.row(2).equal(torch::tensor({{0, 2}, {1, 2}}, torch::kLong)));
  }
  const ColumnDict empty = load_parquet(files / "empty");
  CHECK(empty.size() == 16);
  CHECK(ragged_of(empty, "coded").size() == 0);
  CHECK(tensor_of(empty, "matrix").sizes() == at::IntArrayRef({0, 3, 2}));
}

TEST_CASE("Parquet columns are chosen by name") {
  const ParquetFiles files(R"(
pq.write_table(pa.table({'x': [1.5, 2.5], 'label': [0, 1], 's': [{'a': 1, 'b': 'u'}] * 2, 'odd': [[(1, 2)]] * 2},
               schema=pa.schema([('x', pa.float64()), ('label', pa.int64()), ('s', pa.struct({'a': pa.int8(), 'b': pa.string()})),
                                 ('odd', pa.map_(pa.int8(), pa.int8()))])), 'a')
twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=['x', 'x'])
pq.write_table(twice, 'twice')
)");
  const std::string path = files / "a";
  const ColumnDict one = load_parquet(path, {.columns = {"label"}});
  CHECK(one.size() == 1);
  CHECK(tensor_of(one, "label").equal(torch::tensor({0, 1}, torch::kLong)));
  CHECK(load_parquet(path, {.columns = {"s", "x"}}).size() == 3);
  CHECK(tensor_of(load_parquet(path, {.columns = {"s.a"}}), "s.a").equal(torch::ones({2}, torch::kChar)));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(path, {.columns = {"lable"}}); }),
             ContainsSubstring("no column called 'lable'") && ContainsSubstring("Did you mean 'label'?"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(path); }),
             ContainsSubstring("column 'odd': expected numbers") && ContainsSubstring("got map<int8, int8"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "twice"); }),
             ContainsSubstring("two columns called 'x'"));
}

TEST_CASE("Parquet nulls are NaN in floats and named elsewhere") {
  const ParquetFiles files(R"(
columns = {
    'f16': pa.array([1, None, 3, None, 5], pa.float32()).cast(pa.float16()), 'f32': pa.array([1, None, 3, None, 5], pa.float32()),
    'f64': pa.array([1, None, 3, None, 5], pa.float64()), 'lists': pa.array([[1], [], [None, 2], [3], []], pa.list_(pa.float32())),
    'pairs': pa.array([[1, 2], [None, 3], [4, 5], [6, None], [7, 8]], pa.list_(pa.float64(), 2)),
    'in': pa.array([{'f': 1.0}, None, {'f': None}, {'f': 2.0}, {'f': 3.0}]),
}
pq.write_table(pa.table(columns), 'floats', row_group_size=2)
bad = {
    'int': pa.array([1, 2, 3, None, 5]), 'bool': pa.array([True, False, True, None, False]),
    'day': pa.array([1, 2, 3, None, 5], pa.date32()), 'text': pa.array(['a', 'b', 'c', None, 'e']),
    'coded': pa.array(['a', 'b', 'a', None, 'b']).dictionary_encode(), 'raw': pa.array([b'aa', b'bb', b'cc', None, b'dd'], pa.binary(2)),
    'list': pa.array([[1], [2], [3, 3], None, [5]], pa.list_(pa.float32())),
    'inner': pa.array([[1], [], [], [2, None, 3], []], pa.list_(pa.int64())),
    'pair': pa.array([[1, 2]] * 3 + [[1, None], [1, 2]], pa.list_(pa.int64(), 2)),
    'struct': pa.array([{'i': 1}] * 3 + [None, {'i': 2}]),
}
for name in bad:
    pq.write_table(pa.table({name: bad[name]}), name, row_group_size=2)
    pq.write_table(pa.table({name: bad[name]}), name + '-one')
pq.write_table(pa.table({'nothing': pa.nulls(3)}), 'nothing')
)");
  const ColumnDict columns = load_parquet(files / "floats");
  const double nan = std::nan("");
  const auto want = torch::tensor({1.0, nan, 3.0, nan, 5.0}, torch::kDouble);
  for (const char* name : {"f16", "f32", "f64"}) {
    INFO(name);
    CHECK(torch::allclose(tensor_of(columns, name).to(torch::kDouble), want, 0, 0, /*equal_nan=*/true));
  }
  const Ragged lists = ragged_of(columns, "lists");
  CHECK(lists.lengths().equal(torch::tensor({1, 0, 2, 1, 0}, torch::kLong)));
  CHECK(lists.row(2)[0].isnan().item<bool>());
  CHECK(lists.row(2)[1].item<float>() == 2);
  CHECK(tensor_of(columns, "pairs")
            .isnan()
            .equal(torch::tensor({0, 0, 1, 0, 0, 0, 0, 1, 0, 0}, torch::kLong).reshape({5, 2}) > 0));
  CHECK(tensor_of(columns, "in.f").isnan().equal(torch::tensor({0, 1, 1, 0, 0}, torch::kLong) > 0));
  int checked = 0;
  for (const char* name : {"int", "bool", "day", "text", "coded", "raw", "list", "inner", "pair", "struct"}) {
    for (const char* kind : {"", "-one"}) {
      const std::string file = std::string(name) + kind;
      INFO(file);
      const std::string column = std::string(name) == "struct" ? "struct.i" : name;
      CHECK_THAT(
          test::error_of<DataError>([&] { load_parquet(files / file); }),
          ContainsSubstring(concat(file, ": column '", column, "', row 3: expected a value, got null")) &&
              ContainsSubstring("fillna"));
      ++checked;
    }
  }
  CHECK(checked == 20);
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "nothing"); }),
             ContainsSubstring("got null"));
}

TEST_CASE("a folder of Parquet files is joined in the order of their names") {
  const ParquetFiles files(R"(
os.makedirs('parts/sub'); os.makedirs('other'); os.makedirs('bare')
for part in [1, 0, 2]:
    x = list(range(part * 10, part * 10 + 10))
    pq.write_table(pa.table({'x': x, 's': [str(i) for i in x]}), f'parts/part-{part}.parquet', row_group_size=4)
open('parts/_SUCCESS', 'w'); open('parts/readme.txt', 'w')
pq.write_table(pa.table({'x': [1]}), 'other/a.parquet')
pq.write_table(pa.table({'x': [1.5]}), 'other/b.parquet')
pq.write_table(pa.table({'y': [1.5]}), 'parts/sub/c.parquet')
os.makedirs('names')
pq.write_table(pa.table({'x': [1]}), 'names/a.parquet')
pq.write_table(pa.table({'x': [1], 'y': [2]}), 'names/b.parquet')
os.makedirs('hole')
pq.write_table(pa.table({'x': [1, 2]}), 'hole/a.parquet')
pq.write_table(pa.table({'x': [1, None]}), 'hole/b.parquet')
)");
  const ColumnDict columns = load_parquet(files / "parts");
  CHECK(tensor_of(columns, "x").equal(torch::arange(30)));
  CHECK(text_of(ragged_of(columns, "s").row(17)) == "17");
  CHECK(ragged_of(columns, "s").size() == 30);
  CHECK_THAT(
      test::error_of<DataError>([&] { load_parquet(files / "other"); }),
      ContainsSubstring("b.parquet: column 'x': expected Long, as in") && ContainsSubstring("got Double"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "names"); }),
             ContainsSubstring("b.parquet: its columns"));
  CHECK(tensor_of(load_parquet(files / "names", {.columns = {"x"}}), "x").numel() == 2);
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "hole"); }),
             ContainsSubstring("b.parquet: column 'x', row 1"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "bare"); }),
             ContainsSubstring("called *.parquet"));
}

TEST_CASE("damaged Parquet files are errors that name them") {
  const ParquetFiles files(R"(
n = 500
pq.write_table(pa.table({'x': list(range(n)), 's': [str(i) for i in range(n)], 'l': [[i] * (i % 4) for i in range(n)]}),
               'good', row_group_size=100, write_page_checksum=True)
)");
  CHECK(has_parquet());
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "none"); }),
             ContainsSubstring("No such file"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "write.py"); }),
             ContainsSubstring("write.py can't be read as Parquet"));
  CHECK_THAT(test::error_of<DataError>([&] { load_parquet("/dev/null"); }),
             ContainsSubstring("got a device"));
  const std::string whole = read_file(files / "good");
  REQUIRE(load_parquet(files / "good").size() == 3);
  for (size_t length = 0; length < whole.size(); length += 97) {
    std::ofstream(files / "cut", std::ios::binary) << whole.substr(0, length);
    INFO(length);
    CHECK_THAT(test::error_of<DataError>([&] { load_parquet(files / "cut"); }),
               ContainsSubstring("cut can't be read as Parquet"));
  }
  // A changed byte is noticed or changes nothing that is read; never another error, never a crash.
  int noticed = 0;
  int tried = 0;
  for (size_t at = 4; at < whole.size(); at += 31) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0xFF);
    std::ofstream(files / "changed", std::ios::binary) << changed;
    INFO(at);
    const std::string error = test::error_of<DataError>([&] { load_parquet(files / "changed"); });
    ++tried;
    if (error == "no error") continue;
    ++noticed;
    CHECK_THAT(error, ContainsSubstring("changed"));
  }
  CHECK(noticed > tried / 2);
}

TEST_CASE("a Parquet file is a shared data set") {
  const ParquetFiles files(R"(
pq.write_table(pa.table({'x': [float(i) for i in range(20)], 's': ['ab' * (i % 3) for i in range(20)]}), 'x', row_group_size=6)
)");
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::create(accelerator, [&] { return load_parquet(files / "x"); });
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    double sum = 0;
    for (auto& batch : loader) sum += accelerator.gather_for_metrics(batch["x"]).sum().item<double>();
    if (sum != 190) throw std::runtime_error(concat("sum ", sum));
  });
}

#endif
