// Compiled instead of parquet.cpp where Arrow's libraries were not found or not wanted.
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {

ColumnDict load_parquet(const std::string& path, const ParquetOptions& options) {
  throw DataError({.what = concat("this build of accelerate can't read Parquet (", path, ")"),
                   .hint = "Run third_party/setup.sh --parquet in its checkout, then configure with "
                           "-DACCELERATE_PARQUET=ON and build again."});
}

bool has_parquet() {
  return false;
}

}  // namespace accelerate
