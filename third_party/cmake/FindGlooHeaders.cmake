# The headers of gloo that c10d/ProcessGroupGloo.hpp includes and that the PyPI wheel of torch lacks. Headers only:
# the symbols are inside libtorch_cpu. Gives gloo::headers.

find_path(GLOO_INCLUDE_DIR gloo/transport/device.h)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  GlooHeaders REQUIRED_VARS GLOO_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install them with: apt-get install libgloo-dev")
mark_as_advanced(GLOO_INCLUDE_DIR)
if(GlooHeaders_FOUND AND NOT TARGET gloo::headers)
  add_library(gloo::headers INTERFACE IMPORTED)
  target_include_directories(gloo::headers INTERFACE ${GLOO_INCLUDE_DIR})
endif()
