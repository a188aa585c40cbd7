# Every public header compiles alone, and two files that include all of them, in opposite orders, link together.
#
# A file that sees torch takes 6 s even with the precompiled header, so those of our headers that need torch are
# compiled one by one only with ACCELERATE_TEST_EACH_HEADER (the ci preset); the two orders find most of what that
# finds. The precompiled header hides a forgotten #include <torch/...>, but none of ours.
option(ACCELERATE_TEST_EACH_HEADER "Compile every header that needs torch in a file of its own" OFF)

file(GLOB_RECURSE _headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/accelerate/*.h")
list(FILTER _headers EXCLUDE REGEX "_internal\\.h$")
set(_core_headers ${_headers})
list(FILTER _core_headers INCLUDE REGEX "^accelerate/(core|config|environment|launch|checkpoint/store|tracking/trackers)/")
set(_torch_headers ${_headers})
list(FILTER _torch_headers EXCLUDE REGEX "^accelerate/(core|config|environment|launch|checkpoint/store|tracking/trackers)/")

# Writes one .cpp a header; the second #include shows that the header is guarded.
function(accelerate_header_sources out)
  set(sources)
  foreach(header IN LISTS ARGN)
    string(REGEX REPLACE "[/.]" "_" name "${header}")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

accelerate_header_sources(_core_sources ${_core_headers})
add_library(test_headers_core OBJECT ${_core_sources})
accelerate_configure_target(test_headers_core)
target_link_libraries(test_headers_core PRIVATE accelerate::core)

set(_linked_headers ${_core_headers})
set(_torch_sources)
if(NOT ACCELERATE_CORE_ONLY)
  list(APPEND _linked_headers ${_torch_headers})
  if(ACCELERATE_TEST_EACH_HEADER)
    accelerate_header_sources(_torch_sources ${_torch_headers})
  endif()
endif()

set(_includes)
set(_reversed)
foreach(header IN LISTS _linked_headers)
  string(APPEND _includes "#include \"${header}\"\n")
  string(PREPEND _reversed "#include \"${header}\"\n")
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/headers/all_first.cpp"
     CONTENT "${_includes}int second();\nint main() { return second(); }\n" @ONLY)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/headers/all_second.cpp"
     CONTENT "${_reversed}int second() { return 0; }\n" @ONLY)
accelerate_add_executable(test_headers "${CMAKE_CURRENT_BINARY_DIR}/headers/all_first.cpp"
                          "${CMAKE_CURRENT_BINARY_DIR}/headers/all_second.cpp" ${_torch_sources})
accelerate_compile_quickly(test_headers)
set_target_properties(test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_link_libraries(test_headers PRIVATE accelerate::core)
if(NOT ACCELERATE_CORE_ONLY)
  target_link_libraries(test_headers PRIVATE accelerate::accelerate)
  target_precompile_headers(test_headers REUSE_FROM test_torch_pch)
endif()
add_test(NAME headers COMMAND test_headers)
