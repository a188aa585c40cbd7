# Protozero_FOUND and the target protozero::headers: protocol buffers without a code generator; headers only.
find_path(Protozero_INCLUDE_DIR protozero/pbf_writer.hpp)
mark_as_advanced(Protozero_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Protozero REQUIRED_VARS Protozero_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "Debian: apt-get install libprotozero-dev")
if(Protozero_FOUND AND NOT TARGET protozero::headers)
  add_library(protozero::headers INTERFACE IMPORTED)
  target_include_directories(protozero::headers SYSTEM INTERFACE "${Protozero_INCLUDE_DIR}")
endif()
