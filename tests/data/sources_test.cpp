// Files written by NumPy and gzip come in with NumPy's own values.
#include "accelerate/data/sources/sources.h"

#include <filesystem>
#include <fstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "support/python_files.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;

namespace {

class PythonFiles : public test::PythonFiles {
 public:
  explicit PythonFiles(const std::string& script)
      : test::PythonFiles("ACCELERATE_TEST_PYTHON", "import gzip, struct\nimport numpy as np\n" + script) {}
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("npy arrays of every dtype, order and version") {
  const PythonFiles files(R"(
for name in ['f4', 'f8', 'f2', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'b1', 'c8', 'c16']:
    np.save(name + '.npy', np.arange(6).reshape(2, 3).astype(name))
np.save('big.npy', np.arange(6).reshape(2, 3).astype('>i4'))
np.save('bigc.npy', (np.arange(3) + 1j).astype('>c8'))
np.save('fortran.npy', np.asfortranarray(np.arange(24).reshape(2, 3, 4)))
np.save('scalar.npy', np.float32(2.5))
np.save('empty.npy', np.zeros((0, 3), 'f4'))
with open('v2.npy', 'wb') as f:
    np.lib.format.write_array(f, np.arange(4), version=(2, 0))
np.save('objects.npy', np.array([{}, 1], object), allow_pickle=True)
np.save('records.npy', np.zeros(2, [('a', 'i4'), ('b', 'f4')]))
)");
  const auto want = torch::arange(6).reshape({2, 3});
  int checked = 0;
  for (const char* name : {"f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16"}) {
    INFO(name);
    CHECK(load_npy(files / (std::string(name) + ".npy"))
              .to(torch::kComplexDouble)
              .equal(want.to(torch::kComplexDouble)));
    ++checked;
  }
  CHECK(checked == 13);
  CHECK(load_npy(files / "b1.npy").equal(want > 0));
  CHECK(load_npy(files / "big.npy").equal(want.to(torch::kInt)));
  CHECK(load_npy(files / "bigc.npy")
            .equal(torch::complex(torch::arange(3).to(torch::kFloat), torch::ones({3}))));
  CHECK(load_npy(files / "fortran.npy").equal(torch::arange(24).reshape({2, 3, 4})));
  CHECK(load_npy(files / "scalar.npy").item<float>() == 2.5F);
  CHECK(load_npy(files / "empty.npy").sizes() == at::IntArrayRef({0, 3}));
  CHECK(load_npy(files / "v2.npy").equal(torch::arange(4)));
  CHECK_THAT(test::error_of<DataError>([&] { load_npy(files / "objects.npy"); }),
             ContainsSubstring("Python objects"));
  CHECK_THAT(test::error_of<DataError>([&] { load_npy(files / "records.npy"); }),
             ContainsSubstring("expected numbers or booleans"));
  const std::string whole = read_file(files / "f4.npy");
  for (size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(files / "cut.npy", std::ios::binary) << whole.substr(0, length);
    INFO(length);
    CHECK_THAT(test::error_of<DataError>([&] { load_npy(files / "cut.npy"); }),
               ContainsSubstring("is no complete .npy array"));
  }
  auto mapped = load_npy(files / "f4.npy");
  mapped.zero_();  // this process's copy only
  CHECK(load_npy(files / "f4.npy").equal(want.to(torch::kFloat)));
}

TEST_CASE("npz archives, stored and compressed, large members included") {
  const PythonFiles files(R"(
a = np.arange(12, dtype='f4').reshape(3, 4)
np.savez('plain.npz', a=a, b=np.arange(5))
np.savez_compressed('packed.npz', a=a, z=np.zeros(3000000))
)");
  const TensorDict plain = load_npz(files / "plain.npz");
  CHECK(plain.size() == 2);
  CHECK(plain.at("a").equal(torch::arange(12).to(torch::kFloat).reshape({3, 4})));
  CHECK(plain.at("b").equal(torch::arange(5)));
  const TensorDict packed = load_npz(files / "packed.npz");
  CHECK(packed.at("a").equal(plain.at("a")));
  CHECK(packed.at("z").equal(torch::zeros({3000000}, torch::kDouble)));
  const std::string whole = read_file(files / "plain.npz");
  for (size_t length = 0; length < whole.size(); length += 7) {
    std::ofstream(files / "cut.npz", std::ios::binary) << whole.substr(0, length);
    INFO(length);
    CHECK_THAT(test::error_of<DataError>([&] { load_npz(files / "cut.npz"); }),
               ContainsSubstring("is no complete .npz archive"));
  }
}

TEST_CASE("IDX files as MNIST has them, plain and gzipped") {
  const PythonFiles files(R"(
def idx(code, array):
    return struct.pack('>BBBB', 0, 0, code, array.ndim) + struct.pack('>%di' % array.ndim, *array.shape) + array.tobytes()
images = np.arange(24, dtype='u1').reshape(2, 3, 4)
open('images', 'wb').write(idx(8, images))
gzip.open('images.gz', 'wb').write(idx(8, images))
open('floats', 'wb').write(idx(0x0D, np.array([1.5, -2], '>f4')))
open('wrong', 'wb').write(idx(8, images)[:-1])
gzip_bytes = open('images.gz', 'rb').read()
open('cut.gz', 'wb').write(gzip_bytes[:-9])
)");
  const auto want = torch::arange(24).to(torch::kByte).reshape({2, 3, 4});
  CHECK(load_idx(files / "images").equal(want));
  CHECK(load_idx(files / "images.gz").equal(want));
  CHECK(load_idx(files / "floats").equal(torch::tensor({1.5F, -2.0F})));
  CHECK_THAT(test::error_of<DataError>([&] { load_idx(files / "wrong"); }),
             ContainsSubstring("expected 24 bytes of data after its header of 16, got 39"));
  CHECK_THAT(test::error_of<DataError>([&] { load_idx(files / "cut.gz"); }), ContainsSubstring("cut.gz"));
  CHECK_THAT(test::error_of<DataError>([&] { load_idx(files / "write.py"); }),
             ContainsSubstring("is no IDX file"));
  CHECK_THAT(test::error_of<DataError>([&] { load_idx(files / "none"); }), ContainsSubstring("No such file"));
  CHECK_THAT(test::error_of<DataError>([&] { load_idx(std::filesystem::temp_directory_path().string()); }),
             ContainsSubstring("got a folder"));
}

TEST_CASE("raw arrays with a shape, an offset, and one open size") {
  const PythonFiles files("np.arange(10, dtype='i4').tofile('raw')\n");
  const std::string path = files / "raw";
  CHECK(load_raw(path, torch::kInt, {2, 5}).equal(torch::arange(10).to(torch::kInt).reshape({2, 5})));
  CHECK(load_raw(path, torch::kInt, {-1, 2}, 8).equal(torch::arange(2, 10).to(torch::kInt).reshape({4, 2})));
  CHECK(load_raw(path, torch::kByte, {-1}).numel() == 40);
  CHECK_THAT(test::error_of<DataError>([&] {
               load_raw(path, torch::kInt, {-1, 4});
             }),
             ContainsSubstring("a whole number of rows of 16 bytes, got 40 bytes"));
  CHECK_THAT(test::error_of<DataError>([&] { load_raw(path, torch::kInt, {11}); }),
             ContainsSubstring("at least 44 bytes"));
  CHECK_THAT(test::error_of<DataError>([&] {
               load_raw(path, torch::kInt, {-1, -1});
             }),
             ContainsSubstring("at most one -1"));
  CHECK_THAT(test::error_of<DataError>([&] { load_raw(path, torch::kInt, {1}, 3); }),
             ContainsSubstring("a multiple of 4"));
}

TEST_CASE("CSV tables with and without header, quotes, blanks and gzip") {
  const PythonFiles files(R"(
open('a.csv', 'wb').write(b'\xef\xbb\xbfx,"y, z",n\r\n1,2.5,-3e2\r\n\r\n"4", ,+5\r\n')
gzip.open('b.csv.gz', 'wb').write(b'1;2\n3;4')
open('word.csv', 'w').write('a,b\n1,2\n3,four\n')
open('short.csv', 'w').write('1,2\n3\n')
open('empty.csv', 'w').write('\n')
)");
  const CsvTable a = load_csv(files / "a.csv");
  CHECK(a.names == std::vector<std::string>{"x", "y, z", "n"});
  CHECK(a.values.sizes() == at::IntArrayRef({2, 3}));
  CHECK(a.column("n").equal(torch::tensor({-300.0, 5.0}, torch::kDouble)));
  CHECK(a.column("y, z")[1].isnan().item<bool>());
  CHECK_THAT(test::error_of<DataError>([&] { (void)a.column("m"); }),
             ContainsSubstring("no column called 'm'"));
  const CsvTable b = load_csv(files / "b.csv.gz", {.delimiter = ';'});
  CHECK(b.names.empty());
  CHECK(b.values.equal(torch::tensor({{1.0, 2.0}, {3.0, 4.0}}, torch::kDouble)));
  CHECK_THAT(test::error_of<DataError>([&] { load_csv(files / "word.csv"); }),
             ContainsSubstring("word.csv:3: column 2: expected a number, got 'four'"));
  CHECK_THAT(test::error_of<DataError>([&] { load_csv(files / "short.csv"); }),
             ContainsSubstring("short.csv:2: expected 2 fields"));
  CHECK_THAT(test::error_of<DataError>([&] { load_csv(files / "empty.csv"); }),
             ContainsSubstring("is empty"));
}

TEST_CASE("a mapped file is a data set without a copy") {
  const PythonFiles files("np.save('x.npy', np.arange(20, dtype='f4').reshape(10, 2))\n");
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::map([&] { return load_npy(files / "x.npy"); });
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    double sum = 0;
    for (auto& batch : loader) sum += accelerator.gather_for_metrics(batch.data).sum().item<double>();
    if (sum != 190) throw std::runtime_error(concat("sum ", sum));
  });
}
