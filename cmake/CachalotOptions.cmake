# What can be chosen, and the flags that follow from it.

option(CACHALOT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_TOOLS "Build the cachalot command" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_PYTORCH "Build the PyTorch plug-in" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_GPU_CHECKS "Build the programs of bench/gpu, where nvcc is found" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_FUZZERS "Build the fuzz targets, with Clang" OFF)
option(CACHALOT_WERROR "Treat warnings as errors" OFF)
option(CACHALOT_PORTABLE_COMMAND "Put fmt and libstdc++ into the cachalot command, for machines without them" OFF)
option(CACHALOT_UNITY_BUILD "Compile the files of a folder together" ON)
set(CACHALOT_SANITIZE "" CACHE STRING "Sanitizers for everything, as for -fsanitize: address,undefined or thread")

# What the system does not have: fmt, nlohmann-json, CLI11, zlib and GoogleTest in a folder that bench/gpu/pack has made.
set(CACHALOT_DEPS "$ENV{CACHALOT_DEPS}" CACHE PATH "Folder of the libraries that bench/gpu/pack gathers; empty: the system's")
if(CACHALOT_DEPS)
  cmake_path(ABSOLUTE_PATH CACHALOT_DEPS NORMALIZE)
  if(NOT EXISTS ${CACHALOT_DEPS}/packed-by-cachalot)
    message(FATAL_ERROR "CACHALOT_DEPS is '${CACHALOT_DEPS}'; it must be a folder that bench/gpu/pack has made")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${CACHALOT_DEPS})
endif()

include(GNUInstallDirs)
set(CACHALOT_SIMULATOR_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/cachalot/simulator)  # `cachalot simulate` looks here, too

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Ours only: dependencies are system headers, and a project that embeds cachalot keeps its own flags.
add_library(cachalot_flags INTERFACE)
target_compile_options(cachalot_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow
  $<$<BOOL:${CACHALOT_WERROR}>:-Werror>
  # GCC 12 sees overlapping copies in std::string's operator+ at -O3: GCC bug 105651, fixed in 13.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

if(CACHALOT_SANITIZE)
  set(sanitize -fsanitize=${CACHALOT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(cachalot_flags INTERFACE ${sanitize})
  target_link_options(cachalot_flags INTERFACE ${sanitize})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")  # C programs use the library, too, whose code needs the part for C++
    target_link_options(cachalot_flags INTERFACE -fsanitize-link-c++-runtime)
    target_link_libraries(cachalot_flags INTERFACE stdc++)
  endif()
endif()

# Files that are compiled together cost a quarter of the time, and the path of a malloc, which crosses several files, is
# optimized as a whole: no optimization at link time is needed for that (docs/decisions).
#
# cachalot_unity(<target> [GROUPS <name>=<folder>,…]…): in each group are the target's files that lie directly in its folders
# (relative to the repository; "*": all the rest). Without groups all files are one.
function(cachalot_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "GROUPS")
  if(NOT CACHALOT_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    set(of_source all)
    foreach(group IN LISTS arg_GROUPS)
      string(REPLACE "=" ";" words ${group})
      list(POP_FRONT words name)
      string(REPLACE "," ";" folders "${words}")
      if(folder IN_LIST folders)
        set(of_source ${name})
      endif()
    endforeach()
    get_source_file_property(is_alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(source MATCHES "\\.cpp$" AND NOT is_alone)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${of_source})
    endif()
  endforeach()
endfunction()
