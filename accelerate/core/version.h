#pragma once

// The one place that holds the version; CMakeLists.txt reads these three lines.
#define ACCELERATE_VERSION_MAJOR 0
#define ACCELERATE_VERSION_MINOR 1
#define ACCELERATE_VERSION_PATCH 0

#define ACCELERATE_DETAIL_STR2(x) #x
#define ACCELERATE_DETAIL_STR(x) ACCELERATE_DETAIL_STR2(x)

namespace accelerate {

/// "MAJOR.MINOR.PATCH" of the headers that are being compiled.
inline constexpr const char* kVersion =
    ACCELERATE_DETAIL_STR(ACCELERATE_VERSION_MAJOR) "." ACCELERATE_DETAIL_STR(
        ACCELERATE_VERSION_MINOR) "." ACCELERATE_DETAIL_STR(ACCELERATE_VERSION_PATCH);

}  // namespace accelerate
