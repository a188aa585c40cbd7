# The C++ libraries of Apache Arrow and Parquet, as the PyPI wheel `pyarrow` holds them: headers in include/, libraries
# that have their version in the name (libarrow.so.2600) and no link name beside it, and no package for CMake.
#
# Variables that lead to it, first one wins:
#   ArrowWheel_ROOT  the folder that holds include/ and the libraries (site-packages/pyarrow), or a virtual environment
#                    with pyarrow in it
#   otherwise, for an installed accelerate, the one it was built with; .venv-arrow of the checkout or of the project
#   that uses us (third_party/setup.sh --parquet makes it)
#
# Results:
#   ArrowWheel_FOUND, ArrowWheel_VERSION, ArrowWheel_ROOT_DIR
#   arrow::arrow    headers and libarrow
#   arrow::parquet  the above and libparquet

set(_arrow_marker include/parquet/arrow/reader.h)

# Nothing found is kept in the cache, as in FindLibTorch.cmake.
set(_arrow_places "${ACCELERATE_ARROW_HINT}" "${PROJECT_SOURCE_DIR}/.venv-arrow" "${CMAKE_SOURCE_DIR}/.venv-arrow")
if(ArrowWheel_ROOT)
  get_filename_component(_arrow_places "${ArrowWheel_ROOT}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
endif()
set(ArrowWheel_ROOT_DIR "")
foreach(_place IN LISTS _arrow_places)
  file(GLOB _inside "${_place}/lib/python3*/site-packages/pyarrow")
  foreach(_candidate "${_place}" ${_inside})
    if(NOT ArrowWheel_ROOT_DIR AND EXISTS "${_candidate}/${_arrow_marker}")
      set(ArrowWheel_ROOT_DIR "${_candidate}")
    endif()
  endforeach()
endforeach()

set(_arrow_problem "Run third_party/setup.sh --parquet (it makes .venv-arrow with pyarrow), or pass "
                   "-DArrowWheel_ROOT=<folder of pyarrow>, or -DACCELERATE_PARQUET=OFF to build without Parquet.")
list(JOIN _arrow_problem "" _arrow_problem)
if(ArrowWheel_ROOT AND NOT ArrowWheel_ROOT_DIR)
  set(_arrow_problem "ArrowWheel_ROOT is ${ArrowWheel_ROOT}, which lacks ${_arrow_marker}.")
endif()

set(ArrowWheel_VERSION)
set(_arrow_usable FALSE)
if(ArrowWheel_ROOT_DIR)
  file(STRINGS "${ArrowWheel_ROOT_DIR}/include/arrow/util/config.h" _arrow_lines
       REGEX "^#define ARROW_(VERSION_STRING|SO_VERSION) ")
  string(REGEX REPLACE ".*ARROW_VERSION_STRING \"([^\"]+)\".*" "\\1" ArrowWheel_VERSION "${_arrow_lines}")
  string(REGEX REPLACE ".*ARROW_SO_VERSION \"([^\"]+)\".*" "\\1" _arrow_so_version "${_arrow_lines}")
  set(_arrow_library "${ArrowWheel_ROOT_DIR}/libarrow.so.${_arrow_so_version}")
  set(_parquet_library "${ArrowWheel_ROOT_DIR}/libparquet.so.${_arrow_so_version}")
  if(NOT ArrowWheel_VERSION MATCHES "^26\\.")
    set(_arrow_problem "pyarrow ${ArrowWheel_VERSION} in ${ArrowWheel_ROOT_DIR} can't be used: its C++ interfaces change "
                       "between releases, and accelerate is written for 26. Run third_party/setup.sh --parquet for a "
                       "copy of its own.")
    list(JOIN _arrow_problem "" _arrow_problem)
  elseif(NOT EXISTS "${_arrow_library}" OR NOT EXISTS "${_parquet_library}")
    set(_arrow_problem "${ArrowWheel_ROOT_DIR} has headers, but lacks libarrow.so.${_arrow_so_version} or "
                       "libparquet.so.${_arrow_so_version}.")
    list(JOIN _arrow_problem "" _arrow_problem)
  else()
    set(_arrow_usable TRUE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowWheel REQUIRED_VARS ArrowWheel_ROOT_DIR _arrow_usable
                                  VERSION_VAR ArrowWheel_VERSION REASON_FAILURE_MESSAGE "\n  ${_arrow_problem}")
if(NOT ArrowWheel_FOUND)
  return()
endif()

if(NOT TARGET arrow::parquet)
  add_library(arrow::arrow SHARED IMPORTED)
  set_target_properties(arrow::arrow PROPERTIES IMPORTED_LOCATION "${_arrow_library}")
  target_include_directories(arrow::arrow INTERFACE "${ArrowWheel_ROOT_DIR}/include")
  add_library(arrow::parquet SHARED IMPORTED)
  set_target_properties(arrow::parquet PROPERTIES IMPORTED_LOCATION "${_parquet_library}")
  target_link_libraries(arrow::parquet INTERFACE arrow::arrow)
endif()
message(STATUS "Arrow and Parquet ${ArrowWheel_VERSION}: ${ArrowWheel_ROOT_DIR}")
