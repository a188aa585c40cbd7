# LibTorch, as the PyPI wheel `torch` or the zip from pytorch.org lays it out.
#
# torch's own find_package(Torch) insists on a CUDA toolkit when the wheel was built with CUDA, so the imported
# targets are made here. This file is installed beside accelerateConfig.cmake and serves our users' projects too.
#
# Variables that lead to it, first one wins:
#   LIBTORCH_ROOT    the folder that holds include/ and lib/ (for a wheel: site-packages/torch)
#   ACCELERATE_VENV  a virtual environment with torch in it
#   otherwise, for an installed accelerate, the one it was built with; .venv of the checkout (before it .venv-cuda and
#   .venv-full, with ACCELERATE_CUDA=ON) or of the project that uses us; the active virtual environment;
#   CMAKE_PREFIX_PATH; and the torch of python3 on PATH
#
# Results:
#   LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT_DIR
#   torch::cpu   headers, libtorch_cpu, libc10
#   torch::cuda  the above, libtorch_cuda, libc10_cuda, the CUDA runtime and its headers; depends on ACCELERATE_CUDA:
#                OFF never, ON always (an error where parts are missing), AUTO where an NVIDIA driver is loaded

set(_libtorch_marker include/torch/csrc/api/include/torch/torch.h)

function(_libtorch_version root out)
  set(header "${root}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}")  # older releases
    set(header "${root}/include/torch/csrc/api/include/torch/version.h")
  endif()
  set(version)
  if(EXISTS "${header}")
    file(STRINGS "${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# The first LibTorch 2.11 of the places above; where there is none, the first of any version, for the message.
function(_libtorch_find out)
  set(candidates)
  set(venvs)
  if(ACCELERATE_VENV)
    get_filename_component(venv "${ACCELERATE_VENV}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
    list(APPEND venvs "${venv}")
  else()
    list(APPEND candidates "${ACCELERATE_LIBTORCH_HINT}")
    foreach(dir "${PROJECT_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}")
      # Only these two hold what a CUDA build needs.
      if(ACCELERATE_CUDA STREQUAL "ON")
        list(APPEND venvs "${dir}/.venv-cuda" "${dir}/.venv-full")
      endif()
      list(APPEND venvs "${dir}/.venv")
    endforeach()
    if(NOT "$ENV{VIRTUAL_ENV}" STREQUAL "")
      list(APPEND venvs "$ENV{VIRTUAL_ENV}")
    endif()
  endif()
  foreach(venv IN LISTS venvs)
    file(GLOB found "${venv}/lib/python3*/site-packages/torch")
    list(APPEND candidates ${found})
  endforeach()
  if(NOT ACCELERATE_VENV)
    list(APPEND candidates ${CMAKE_PREFIX_PATH})
    if(Torch_DIR)
      get_filename_component(found "${Torch_DIR}/../../.." ABSOLUTE)
      list(APPEND candidates "${found}")
    endif()
    find_program(_LIBTORCH_PYTHON python3)
    mark_as_advanced(_LIBTORCH_PYTHON)
  endif()

  set(best "")
  foreach(candidate IN LISTS candidates ITEMS python3)
    if(candidate STREQUAL "python3")
      if(ACCELERATE_VENV OR NOT _LIBTORCH_PYTHON)
        continue()
      endif()
      # Asked last and only when needed, since starting Python takes a while.
      execute_process(
        COMMAND "${_LIBTORCH_PYTHON}" -c
                "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE candidate OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    if(NOT candidate OR NOT EXISTS "${candidate}/${_libtorch_marker}")
      continue()
    endif()
    _libtorch_version("${candidate}" version)
    if(version MATCHES "^2\\.11\\.")
      set(best "${candidate}")
      break()
    elseif(NOT best)
      set(best "${candidate}")
    endif()
  endforeach()
  set(${out} "${best}" PARENT_SCOPE)
endfunction()

# Nothing found is kept in the cache: a build folder follows when ACCELERATE_VENV or LIBTORCH_ROOT is changed.
if(NOT DEFINED LIBTORCH_ROOT)
  set(LIBTORCH_ROOT "" CACHE PATH "Folder of LibTorch (holds include/ and lib/); empty: look for it")
endif()
set(LibTorch_ROOT_DIR "${LIBTORCH_ROOT}")
if(NOT LibTorch_ROOT_DIR)
  _libtorch_find(LibTorch_ROOT_DIR)
endif()

set(_libtorch_problem
    "Run third_party/setup.sh (it makes .venv with torch), or pass -DLIBTORCH_ROOT=<folder with include/ and lib/>.")
if(ACCELERATE_VENV AND NOT LibTorch_ROOT_DIR)
  set(_libtorch_problem "ACCELERATE_VENV is ${ACCELERATE_VENV}, and there is no torch in it.")
elseif(LIBTORCH_ROOT AND NOT EXISTS "${LIBTORCH_ROOT}/${_libtorch_marker}")
  set(_libtorch_problem "LIBTORCH_ROOT is ${LIBTORCH_ROOT}, which lacks ${_libtorch_marker}.")
  set(LibTorch_ROOT_DIR "")
endif()

set(LibTorch_VERSION)
set(_libtorch_cpu "${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so")
set(_libtorch_c10 "${LibTorch_ROOT_DIR}/lib/libc10.so")
set(_libtorch_usable FALSE)
if(LibTorch_ROOT_DIR)
  _libtorch_version("${LibTorch_ROOT_DIR}" LibTorch_VERSION)
  if(NOT LibTorch_VERSION MATCHES "^2\\.11\\.")
    set(_libtorch_problem
        "LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT_DIR} can't be used: accelerate calls C++ interfaces of torch "
        "that change between releases, and is written for 2.11. Run third_party/setup.sh for a copy of its own, or "
        "install torch==2.11.0.")
    list(JOIN _libtorch_problem "" _libtorch_problem)
  elseif(NOT EXISTS "${_libtorch_cpu}" OR NOT EXISTS "${_libtorch_c10}")
    set(_libtorch_problem "${LibTorch_ROOT_DIR} has headers, but lib/ lacks libtorch_cpu.so or libc10.so.")
  else()
    set(_libtorch_usable TRUE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT_DIR _libtorch_usable
                                  VERSION_VAR LibTorch_VERSION REASON_FAILURE_MESSAGE "\n  ${_libtorch_problem}")
if(NOT LibTorch_FOUND)
  return()
endif()

if(NOT TARGET torch::cpu)
  add_library(torch::c10 SHARED IMPORTED)
  set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION "${_libtorch_c10}")
  add_library(torch::cpu SHARED IMPORTED)
  set_target_properties(torch::cpu PROPERTIES IMPORTED_LOCATION "${_libtorch_cpu}")
  target_include_directories(torch::cpu INTERFACE "${LibTorch_ROOT_DIR}/include"
                                                  "${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  target_link_libraries(torch::cpu INTERFACE torch::c10)
  # c10d's classes are hidden without these.
  target_compile_definitions(torch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  # The CUDA libraries that libtorch_cpu needs even on the CPU are found through its own run path, not at link time.
  target_link_options(torch::cpu INTERFACE LINKER:--allow-shlib-undefined)
endif()

# CUDA: the toolkit's headers, or those of the nvidia wheels that torch depends on.
if(NOT ACCELERATE_CUDA STREQUAL "OFF" AND NOT TARGET torch::cuda)
  set(_cuda_wanted FALSE)
  if(ACCELERATE_CUDA STREQUAL "ON" OR EXISTS /dev/nvidiactl)
    set(_cuda_wanted TRUE)
  endif()
  set(_cuda_missing)
  if(_cuda_wanted)
    get_filename_component(_site_packages "${LibTorch_ROOT_DIR}/.." ABSOLUTE)
    foreach(_name torch_cuda c10_cuda)
      set(_libtorch_${_name} "${LibTorch_ROOT_DIR}/lib/lib${_name}.so")
      if(NOT EXISTS "${_libtorch_${_name}}")
        list(APPEND _cuda_missing "lib${_name}.so")
      endif()
    endforeach()
    set(_toolkits "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" /usr/local/cuda)
    set(_toolkit_includes ${_toolkits})
    list(TRANSFORM _toolkit_includes APPEND /include)
    set(_toolkit_libs ${_toolkits})
    list(TRANSFORM _toolkit_libs APPEND /lib64)
    # The wheels come first: they are of the release that torch was built with. Not kept in the cache, see above.
    find_path(_cuda_include cuda_runtime_api.h NO_CACHE
              PATHS "${_site_packages}/nvidia/cu13/include" ${_toolkit_includes} NO_DEFAULT_PATH)
    find_path(_nccl_include nccl.h NO_CACHE PATHS "${_site_packages}/nvidia/nccl/include" NO_DEFAULT_PATH)
    if(NOT _nccl_include)
      find_path(_nccl_include nccl.h NO_CACHE PATHS ${_toolkit_includes})
    endif()
    find_library(_cudart NAMES libcudart.so.13 cudart NO_CACHE
                 PATHS "${_site_packages}/nvidia/cu13/lib" ${_toolkit_libs} NO_DEFAULT_PATH)
    foreach(_part _cuda_include:cuda_runtime_api.h _nccl_include:nccl.h _cudart:libcudart.so.13)
      string(REPLACE ":" ";" _part "${_part}")
      list(GET _part 0 _variable)
      if(NOT ${_variable})
        list(GET _part 1 _name)
        list(APPEND _cuda_missing "${_name}")
      endif()
    endforeach()
    # The wheel loads a dozen CUDA libraries. A link does not notice when one lacks, but no program would start.
    find_program(_LIBTORCH_LDD ldd)
    mark_as_advanced(_LIBTORCH_LDD)
    if(NOT _cuda_missing AND _LIBTORCH_LDD)
      execute_process(COMMAND "${_LIBTORCH_LDD}" "${_libtorch_torch_cuda}" OUTPUT_VARIABLE _needed ERROR_QUIET)
      string(REGEX MATCHALL "[^ \t\n]+ => not found" _cuda_missing "${_needed}")
      list(TRANSFORM _cuda_missing REPLACE " => not found" "")
    endif()
    list(JOIN _cuda_missing ", " _cuda_missing)
  endif()
  if(_cuda_wanted AND _cuda_missing AND ACCELERATE_CUDA STREQUAL "ON")
    message(FATAL_ERROR
            "ACCELERATE_CUDA=ON, but LibTorch in ${LibTorch_ROOT_DIR} and what lies beside it lack: ${_cuda_missing}.\n"
            "Run third_party/setup.sh --cuda and pass -DACCELERATE_VENV=.venv-cuda, or pass -DACCELERATE_CUDA=OFF.")
  elseif(_cuda_wanted AND _cuda_missing)
    message(STATUS "An NVIDIA driver is loaded, but CPU only is built, for lack of: ${_cuda_missing} "
                   "(third_party/setup.sh --cuda brings them)")
  elseif(_cuda_wanted)
    add_library(torch::c10_cuda SHARED IMPORTED)
    set_target_properties(torch::c10_cuda PROPERTIES IMPORTED_LOCATION "${_libtorch_c10_cuda}")
    add_library(torch::cuda INTERFACE IMPORTED)
    target_include_directories(torch::cuda SYSTEM INTERFACE "${_cuda_include}" "${_nccl_include}")
    target_compile_definitions(torch::cuda INTERFACE USE_C10D_NCCL ACCELERATE_WITH_CUDA)
    # libtorch_cuda registers its kernels when it is loaded. Nothing may name a symbol of it, so the linker is told to
    # keep it where a distribution drops such libraries by default.
    target_link_options(torch::cuda INTERFACE "LINKER:--push-state,--no-as-needed,${_libtorch_torch_cuda},--pop-state")
    target_link_libraries(torch::cuda INTERFACE torch::cpu torch::c10_cuda "${_cudart}")
  endif()
endif()

if(NOT LibTorch_FIND_QUIETLY)
  if(TARGET torch::cuda)
    message(STATUS "LibTorch ${LibTorch_VERSION} with CUDA (gloo, nccl): ${LibTorch_ROOT_DIR}")
  else()
    message(STATUS "LibTorch ${LibTorch_VERSION} for the CPU (gloo): ${LibTorch_ROOT_DIR}")
  endif()
endif()
