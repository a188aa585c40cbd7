# What every target of ours gets: language level, warnings, sanitizers, ccache.

function(accelerate_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter)
  if(ACCELERATE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
    # g++ 12 reports the destructor of strings in a temporary as "may be used uninitialized" when it inlines a lot, and
    # overlapping copies inside string concatenation that can't be (GCC bug 105651).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-error=maybe-uninitialized -Wno-error=restrict)
    endif()
  endif()
  if(ACCELERATE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ACCELERATE_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${ACCELERATE_SANITIZE})
  endif()
endfunction()

# An executable of ours finds our shared libraries and LibTorch beside it after install, and in the build tree before.
function(accelerate_add_executable target)
  add_executable(${target} ${ARGN})
  accelerate_configure_target(${target})
endfunction()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(ACCELERATE_CCACHE ccache)
  if(ACCELERATE_CCACHE)
    # Precompiled headers need the sloppiness to be cached; see ccache's manual, "Precompiled headers". With the other
    # two, another checkout of the same text (a clone, a worktree) finds what this one compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true ${ACCELERATE_CCACHE})
  endif()
endif()
