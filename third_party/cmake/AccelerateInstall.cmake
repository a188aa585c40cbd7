# Install rules, and the package that find_package(accelerate) reads:
#   accelerate::core        the torch-free part
#   accelerate::accelerate  the framework (not with ACCELERATE_CORE_ONLY)
#   accelerate::accel       the program
# yaml-cpp, nlohmann-json, protozero, xxHash, CLI11, libcurl's and gloo's headers are used inside only; those who use the package
# don't need them, except for yaml-cpp, zlib, Open MPI and Arrow where the libraries are static.

include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/accelerate")

# Two sets, so that a project which needs the core alone can load it where there is no LibTorch.
install(TARGETS accelerate_core accel EXPORT accelerateCoreTargets
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT accelerateCoreTargets NAMESPACE accelerate:: DESTINATION "${_package_dir}")
if(TARGET accelerate)
  install(TARGETS accelerate EXPORT accelerateTargets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT accelerateTargets NAMESPACE accelerate:: DESTINATION "${_package_dir}")
endif()

# Headers keep their accelerate/... paths. What a *_internal.h declares is for our own .cpp files.
set(_torch_folders)
if(NOT TARGET accelerate)
  foreach(_folder comm data strategy precision optim checkpoint trainer)
    list(APPEND _torch_folders PATTERN accelerate/${_folder} EXCLUDE)
  endforeach()
  list(APPEND _torch_folders REGEX "accelerate/(tracking/)?[^/]*\\.h$" EXCLUDE)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/accelerate" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE ${_torch_folders})
if(NOT TARGET accelerate)  # torch-free parts of folders that were left out above
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/accelerate/checkpoint/store"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/accelerate/checkpoint" FILES_MATCHING PATTERN "*.h")
endif()

# What the package has to know of this build.
set(ACCELERATE_CONFIG_WITH_TORCH FALSE)
set(ACCELERATE_CONFIG_CUDA OFF)
set(ACCELERATE_CONFIG_PARQUET OFF)
set(ACCELERATE_CONFIG_MPI OFF)
set(ACCELERATE_CONFIG_STATIC FALSE)
if(TARGET accelerate)
  set(ACCELERATE_CONFIG_WITH_TORCH TRUE)
endif()
if(TARGET torch::cuda)
  set(ACCELERATE_CONFIG_CUDA ON)
endif()
if(TARGET accelerate AND TARGET open_mpi::mpi)
  set(ACCELERATE_CONFIG_MPI ON)
endif()
if(TARGET arrow::parquet)
  set(ACCELERATE_CONFIG_PARQUET ON)
endif()
get_target_property(_type accelerate_core TYPE)
if(_type STREQUAL "STATIC_LIBRARY")
  set(ACCELERATE_CONFIG_STATIC TRUE)
endif()

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/accelerateConfig.cmake.in" "${PROJECT_BINARY_DIR}/accelerateConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a new minor version may change interfaces.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/accelerateConfig.cmake" "${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindArrowWheel.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/FindOpenMpi.cmake"
        DESTINATION "${_package_dir}")
