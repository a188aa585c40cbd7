# xxHash, whose header alone holds the whole algorithm (XXH_INLINE_ALL); nothing is linked. Gives xxhash::headers.

find_path(XXHASH_INCLUDE_DIR xxhash.h)
set(XxHash_VERSION)
if(XXHASH_INCLUDE_DIR)
  file(STRINGS "${XXHASH_INCLUDE_DIR}/xxhash.h" _xxhash_lines REGEX "^#define XXH_VERSION_(MAJOR|MINOR|RELEASE) ")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*RELEASE +([0-9]+).*" "\\1.\\2.\\3" XxHash_VERSION
                       "${_xxhash_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  XxHash REQUIRED_VARS XXHASH_INCLUDE_DIR VERSION_VAR XxHash_VERSION
  REASON_FAILURE_MESSAGE "install it with: apt-get install libxxhash-dev")
mark_as_advanced(XXHASH_INCLUDE_DIR)
if(XxHash_FOUND AND NOT TARGET xxhash::headers)
  add_library(xxhash::headers INTERFACE IMPORTED)
  target_include_directories(xxhash::headers INTERFACE ${XXHASH_INCLUDE_DIR})
endif()
