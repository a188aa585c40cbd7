#include "accelerate/data/sources/gzip.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {

std::string read_maybe_gzipped(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    throw DataError({.what = path, .expected = "a file", .got = "a folder"});
  }
  errno = 0;
  // zlib passes files that are not gzipped through unchanged.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzopen(path.c_str(), "rb"), ::gzclose);
  if (!file)
    throw DataError({.what = "opening " + path, .got = errno_text(errno), .hint = "Check the path."});
  std::string text;
  std::vector<char> buffer(1 << 20);
  int got = 0;
  while ((got = ::gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  int error = Z_OK;
  const char* reason = ::gzerror(file.get(), &error);
  if (got < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    throw DataError({.what = concat(path, " is damaged or cut off"), .got = reason});
  }
  return text;
}

}  // namespace accelerate::detail
