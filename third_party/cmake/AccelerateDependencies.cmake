# Finds what we build on and gives every library one namespaced target, whatever its release calls it.

find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # 0.7 has no namespace
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)

if(NOT ACCELERATE_CORE_ONLY)
  find_package(LibTorch 2.11 REQUIRED)
  find_package(GlooHeaders REQUIRED)
  if(ACCELERATE_PARQUET STREQUAL "ON")
    find_package(ArrowWheel REQUIRED)
  elseif(NOT ACCELERATE_PARQUET STREQUAL "OFF")
    find_package(ArrowWheel QUIET)
    if(NOT ArrowWheel_FOUND)
      message(STATUS "Parquet: left out (third_party/setup.sh --parquet brings what it takes)")
    endif()
  endif()
endif()
