# LibTorch, as the PyPI wheel `torch` or the zip from pytorch.org lays it out.
#
# torch's own find_package(Torch) insists on a CUDA toolkit when the wheel was built with CUDA, so the imported
# targets are made here.
#
#   LIBTORCH_ROOT   the folder that holds include/ and lib/; found in .venv of the source tree, in the active virtual
#                   environment, or through `python3 -c "import torch"` when not given
#   LibTorch_VERSION, LibTorch_WITH_CUDA (the wheel has libtorch_cuda)
#   torch::cpu      headers, libtorch_cpu, libc10
#   torch::cuda     the above, libtorch_cuda, libc10_cuda, CUDA's headers; only with ACCELERATE_CUDA

function(_libtorch_candidates out)
  set(candidates)
  foreach(venv "${ACCELERATE_VENV}" "${CMAKE_SOURCE_DIR}/.venv" "${CMAKE_CURRENT_SOURCE_DIR}/.venv" "$ENV{VIRTUAL_ENV}")
    if(venv)
      file(GLOB found "${venv}/lib/python3*/site-packages/torch")
      list(APPEND candidates ${found})
    endif()
  endforeach()
  if(NOT candidates)
    find_program(_LIBTORCH_PYTHON python3)
    if(_LIBTORCH_PYTHON)
      execute_process(
        COMMAND ${_LIBTORCH_PYTHON} -c
                "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      list(APPEND candidates ${found})
    endif()
  endif()
  set(${out} ${candidates} PARENT_SCOPE)
endfunction()

if(NOT LIBTORCH_ROOT)
  _libtorch_candidates(_candidates)
  find_path(LIBTORCH_ROOT include/torch/csrc/api/include/torch/torch.h PATHS ${_candidates} NO_DEFAULT_PATH
            DOC "Folder of LibTorch (holds include/ and lib/)")
endif()
if(LIBTORCH_ROOT)
  find_library(LIBTORCH_CPU_LIBRARY torch_cpu PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LIBTORCH_C10_LIBRARY c10 PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LIBTORCH_CUDA_LIBRARY torch_cuda PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LIBTORCH_C10_CUDA_LIBRARY c10_cuda PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
  mark_as_advanced(LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_CUDA_LIBRARY LIBTORCH_C10_CUDA_LIBRARY)
  file(STRINGS "${LIBTORCH_ROOT}/include/torch/headeronly/version.h" _torch_version
       REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION
                       "${_torch_version}")
  if(LIBTORCH_CUDA_LIBRARY)
    set(LibTorch_WITH_CUDA TRUE)
  else()
    set(LibTorch_WITH_CUDA FALSE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_ROOT VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "run third_party/setup.sh (it makes .venv with torch), or pass -DLIBTORCH_ROOT=<folder with include/ and lib/>")

if(LibTorch_FOUND AND NOT TARGET torch::cpu)
  add_library(torch::c10 SHARED IMPORTED)
  set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${LIBTORCH_C10_LIBRARY})
  add_library(torch::cpu SHARED IMPORTED)
  set_target_properties(torch::cpu PROPERTIES IMPORTED_LOCATION ${LIBTORCH_CPU_LIBRARY})
  target_include_directories(torch::cpu INTERFACE ${LIBTORCH_ROOT}/include
                                                  ${LIBTORCH_ROOT}/include/torch/csrc/api/include)
  target_link_libraries(torch::cpu INTERFACE torch::c10)
  # c10d's classes are hidden without these. The CUDA libraries that libtorch_cpu needs lie beside it and are found
  # through its own run path, not at link time.
  target_compile_definitions(torch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_options(torch::cpu INTERFACE -Wl,--allow-shlib-undefined)
endif()

# CUDA: the toolkit's headers, or those of the nvidia wheels that torch depends on.
if(LibTorch_FOUND AND NOT ACCELERATE_CUDA STREQUAL "OFF" AND NOT TARGET torch::cuda)
  get_filename_component(_site_packages "${LIBTORCH_ROOT}/.." ABSOLUTE)
  find_path(LIBTORCH_CUDA_INCLUDE_DIR cuda_runtime_api.h
            PATHS ${_site_packages}/nvidia/cu13/include ${CUDAToolkit_ROOT}/include $ENV{CUDA_HOME}/include
                  /usr/local/cuda/include)
  find_path(LIBTORCH_NCCL_INCLUDE_DIR nccl.h PATHS ${_site_packages}/nvidia/nccl/include)
  find_library(LIBTORCH_CUDART_LIBRARY NAMES cudart libcudart.so.13
               PATHS ${_site_packages}/nvidia/cu13/lib ${CUDAToolkit_ROOT}/lib64 $ENV{CUDA_HOME}/lib64
                     /usr/local/cuda/lib64)
  mark_as_advanced(LIBTORCH_CUDA_INCLUDE_DIR LIBTORCH_NCCL_INCLUDE_DIR LIBTORCH_CUDART_LIBRARY)
  set(_cuda_missing)
  foreach(part LIBTORCH_CUDA_LIBRARY LIBTORCH_C10_CUDA_LIBRARY LIBTORCH_CUDA_INCLUDE_DIR LIBTORCH_NCCL_INCLUDE_DIR
               LIBTORCH_CUDART_LIBRARY)
    if(NOT ${part})
      list(APPEND _cuda_missing ${part})
    endif()
  endforeach()
  # AUTO chooses CUDA only where a driver shows that a device may be there.
  if(ACCELERATE_CUDA STREQUAL "ON" AND _cuda_missing)
    message(FATAL_ERROR "ACCELERATE_CUDA=ON, but these were not found: ${_cuda_missing}. Install torch with all its "
                        "dependencies (third_party/setup.sh --cuda), or pass -DACCELERATE_CUDA=OFF.")
  endif()
  set(_cuda_wanted FALSE)
  if(ACCELERATE_CUDA STREQUAL "ON" OR EXISTS /dev/nvidiactl)
    set(_cuda_wanted TRUE)
  endif()
  if(_cuda_wanted AND NOT _cuda_missing)
    add_library(torch::c10_cuda SHARED IMPORTED)
    set_target_properties(torch::c10_cuda PROPERTIES IMPORTED_LOCATION ${LIBTORCH_C10_CUDA_LIBRARY})
    add_library(torch::cuda SHARED IMPORTED)
    set_target_properties(torch::cuda PROPERTIES IMPORTED_LOCATION ${LIBTORCH_CUDA_LIBRARY})
    target_include_directories(torch::cuda SYSTEM INTERFACE ${LIBTORCH_CUDA_INCLUDE_DIR} ${LIBTORCH_NCCL_INCLUDE_DIR})
    target_compile_definitions(torch::cuda INTERFACE USE_C10D_NCCL ACCELERATE_WITH_CUDA)
    target_link_libraries(torch::cuda INTERFACE torch::cpu torch::c10_cuda ${LIBTORCH_CUDART_LIBRARY})
  endif()
endif()
if(LibTorch_FOUND)
  if(TARGET torch::cuda)
    message(STATUS "LibTorch ${LibTorch_VERSION}, CUDA variant (gloo, nccl), in ${LIBTORCH_ROOT}")
  else()
    message(STATUS "LibTorch ${LibTorch_VERSION}, CPU only (gloo), in ${LIBTORCH_ROOT}")
  endif()
endif()
