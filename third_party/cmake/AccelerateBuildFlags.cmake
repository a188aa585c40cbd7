# build_flags.json: what a compiler has to be told to build a program with accelerate, for `accel launch train.cpp`,
# which needs no CMake. One for the build tree and one that is installed; relative paths in it start at its own folder,
# so that an installation can be moved. accel finds it from its own place: ACCELERATE_BUILD_FLAGS.

set(_flags_install_dir "${CMAKE_INSTALL_FULL_DATADIR}/accelerate")
file(RELATIVE_PATH _bin_to_flags "${CMAKE_INSTALL_FULL_BINDIR}" "${_flags_install_dir}/build_flags.json")
file(RELATIVE_PATH _flags_to_include "${_flags_install_dir}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
file(RELATIVE_PATH _flags_to_lib "${_flags_install_dir}" "${CMAKE_INSTALL_FULL_LIBDIR}")

set(_torch_includes "")
set(_torch_libraries "")
set(_torch_link_options "")
set(_definitions NDEBUG)
set(_with_torch false)
set(_targets accelerate_core)
if(TARGET accelerate)
  set(_with_torch true)
  set(_targets accelerate accelerate_core)
  set(_torch_libraries "$<TARGET_FILE:torch::cpu>" "$<TARGET_FILE:torch::c10>")
  foreach(_target torch::cpu torch::cuda)
    if(NOT TARGET ${_target})
      continue()
    endif()
    foreach(_property INCLUDE_DIRECTORIES COMPILE_DEFINITIONS LINK_OPTIONS)
      get_target_property(_${_property} ${_target} INTERFACE_${_property})
      if(NOT _${_property})
        set(_${_property} "")
      endif()
    endforeach()
    list(APPEND _torch_includes ${_INCLUDE_DIRECTORIES})
    list(APPEND _definitions ${_COMPILE_DEFINITIONS})
    list(APPEND _torch_link_options ${_LINK_OPTIONS})
  endforeach()
  if(TARGET torch::cuda)
    get_target_property(_cuda_libraries torch::cuda INTERFACE_LINK_LIBRARIES)
    list(FILTER _cuda_libraries INCLUDE REGEX "^/")
    list(APPEND _torch_libraries "$<TARGET_FILE:torch::c10_cuda>" ${_cuda_libraries})
  endif()
endif()

set(_link_options -pthread ${_torch_link_options})
set(_compile_options "")
if(ACCELERATE_SANITIZE)
  set(_compile_options "-fsanitize=${ACCELERATE_SANITIZE}")
  list(APPEND _link_options "-fsanitize=${ACCELERATE_SANITIZE}")
endif()
set(_static_libraries "")
get_target_property(_type accelerate_core TYPE)
if(_type STREQUAL "STATIC_LIBRARY")
  set(_static_libraries -lyaml-cpp -lz)
  if(TARGET accelerate AND TARGET open_mpi::mpi)
    list(APPEND _static_libraries "$<TARGET_FILE:open_mpi::mpi>")
  endif()
  if(TARGET arrow::parquet)
    list(APPEND _static_libraries "$<TARGET_FILE:arrow::parquet>" "$<TARGET_FILE:arrow::arrow>")
  endif()
endif()

# "a", "b" from a list.
function(_json_list out)
  string(REPLACE "\"" "\\\"" text "${ARGN}")
  string(REPLACE ";" "\", \"" text "${text}")
  if(NOT text STREQUAL "")
    set(text "\"${text}\"")
  endif()
  set(${out} "[${text}]" PARENT_SCOPE)
endfunction()

# `prefix_include`, `libraries` and `run_path` are ours; all else is the same in both files.
function(_write_build_flags output prefix_include libraries run_path)
  set(torch_lib "")
  if(TARGET accelerate)
    set(torch_lib "${LibTorch_ROOT_DIR}/lib")
  endif()
  set(arrow_lib "")
  if(TARGET arrow::parquet)
    set(arrow_lib "${ArrowWheel_ROOT_DIR}")
  endif()
  set(mpi_lib "")
  if(TARGET accelerate AND TARGET open_mpi::mpi)
    set(mpi_lib "${OpenMpi_RUN_PATH}")
  endif()
  _json_list(includes ${prefix_include} ${_torch_includes})
  _json_list(definitions ${_definitions})
  _json_list(compile_options ${_compile_options})
  _json_list(link_options ${_link_options})
  _json_list(libraries ${libraries} ${_torch_libraries} ${_static_libraries})
  _json_list(run_paths ${run_path} ${torch_lib} ${arrow_lib} ${mpi_lib})
  file(GENERATE OUTPUT "${output}" CONTENT "{
  \"version\": \"${PROJECT_VERSION}\",
  \"torch\": ${_with_torch},
  \"compiler\": \"${CMAKE_CXX_COMPILER}\",
  \"include_directories\": ${includes},
  \"definitions\": ${definitions},
  \"compile_options\": ${compile_options},
  \"link_options\": ${link_options},
  \"libraries\": ${libraries},
  \"run_paths\": ${run_paths}
}
")
endfunction()

set(_built_libraries "")
set(_installed_libraries "")
foreach(_target ${_targets})
  list(APPEND _built_libraries "$<TARGET_LINKER_FILE:${_target}>")
  list(APPEND _installed_libraries "${_flags_to_lib}/$<TARGET_LINKER_FILE_NAME:${_target}>")
endforeach()
get_filename_component(_built_flags "${PROJECT_BINARY_DIR}/bin/${_bin_to_flags}" ABSOLUTE)
_write_build_flags("${_built_flags}" "${PROJECT_SOURCE_DIR}" "${_built_libraries}"
                   "$<TARGET_FILE_DIR:accelerate_core>")
target_compile_definitions(accel_commands PRIVATE ACCELERATE_BUILD_FLAGS="${_bin_to_flags}")
if(ACCELERATE_INSTALL)
  _write_build_flags("${PROJECT_BINARY_DIR}/installed/build_flags.json" "${_flags_to_include}"
                     "${_installed_libraries}" "${_flags_to_lib}")
  install(FILES "${PROJECT_BINARY_DIR}/installed/build_flags.json" DESTINATION "${CMAKE_INSTALL_DATADIR}/accelerate")
endif()
