# Open MPI's C interface, for the back end mpi. CMake's own FindMPI wants the language C to be on, and for C++ it links
# Open MPI's C++ bindings, which are long deprecated and which nothing here uses.
#
#   OpenMpi_ROOT or -DOPENMPI_COMPILER=...  say which one: its mpicc tells the folders
#
#   open_mpi::mpi     the library and its headers
#   OpenMpi_VERSION   from mpi.h
#   OpenMpi_RUN_PATH  the folder that programs must look into, empty where the loader does so by itself

find_program(OPENMPI_COMPILER NAMES mpicc.openmpi mpicc)
set(_openmpi_include_dirs)
set(_openmpi_library_dirs)
if(OPENMPI_COMPILER)
  # Open MPI's wrapper only: that of another MPI says nothing to these.
  execute_process(COMMAND "${OPENMPI_COMPILER}" --showme:incdirs OUTPUT_VARIABLE _openmpi_include_dirs
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND "${OPENMPI_COMPILER}" --showme:libdirs OUTPUT_VARIABLE _openmpi_library_dirs
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  separate_arguments(_openmpi_include_dirs)
  separate_arguments(_openmpi_library_dirs)
endif()
find_path(OPENMPI_INCLUDE_DIR mpi.h HINTS ${_openmpi_include_dirs}
          PATHS "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/include" PATH_SUFFIXES openmpi)
find_library(OPENMPI_LIBRARY mpi HINTS ${_openmpi_library_dirs}
             PATHS "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/lib")
mark_as_advanced(OPENMPI_COMPILER OPENMPI_INCLUDE_DIR OPENMPI_LIBRARY)

# mpi.h of another MPI has no such lines, and no version is found.
unset(OpenMpi_VERSION)
if(OPENMPI_INCLUDE_DIR AND EXISTS "${OPENMPI_INCLUDE_DIR}/mpi.h")
  file(STRINGS "${OPENMPI_INCLUDE_DIR}/mpi.h" _openmpi_lines REGEX "^#define OMPI_(MAJOR|MINOR|RELEASE)_VERSION +[0-9]+")
  if(_openmpi_lines MATCHES "MAJOR_VERSION +([0-9]+).*MINOR_VERSION +([0-9]+).*RELEASE_VERSION +([0-9]+)")
    set(OpenMpi_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  OpenMpi REQUIRED_VARS OPENMPI_LIBRARY OPENMPI_INCLUDE_DIR OpenMpi_VERSION VERSION_VAR OpenMpi_VERSION
  REASON_FAILURE_MESSAGE "install it with: apt-get install libopenmpi-dev openmpi-bin, or name its mpicc: -DOPENMPI_COMPILER=...")

set(OpenMpi_RUN_PATH "")
if(OpenMpi_FOUND)
  get_filename_component(_openmpi_real "${OPENMPI_LIBRARY}" REALPATH)
  get_filename_component(_openmpi_dir "${_openmpi_real}" DIRECTORY)
  if(NOT _openmpi_dir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    set(OpenMpi_RUN_PATH "${_openmpi_dir}")
  endif()
  if(NOT TARGET open_mpi::mpi)
    add_library(open_mpi::mpi SHARED IMPORTED)
    set_target_properties(open_mpi::mpi PROPERTIES IMPORTED_LOCATION "${OPENMPI_LIBRARY}")
    target_include_directories(open_mpi::mpi SYSTEM INTERFACE "${OPENMPI_INCLUDE_DIR}")
    # mpi.h brings the C++ bindings along otherwise.
    target_compile_definitions(open_mpi::mpi INTERFACE OMPI_SKIP_MPICXX)
  endif()
  message(STATUS "Open MPI ${OpenMpi_VERSION}: ${OPENMPI_LIBRARY}")
endif()
