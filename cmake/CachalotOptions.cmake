# What can be chosen, and the flags that follow from it.

option(CACHALOT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_TOOLS "Build the cachalot command" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_PYTORCH "Build the PyTorch plug-in" ${PROJECT_IS_TOP_LEVEL})
option(CACHALOT_BUILD_FUZZERS "Build the fuzz targets, with Clang" OFF)
option(CACHALOT_WERROR "Treat warnings as errors" OFF)
option(CACHALOT_LTO "Optimize the library at link time" OFF)
set(CACHALOT_SANITIZE "" CACHE STRING "Sanitizers for everything, as for -fsanitize: address,undefined or thread")

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
endif()

# Link-time optimization. Objects keep ordinary code as well (-ffat-lto-objects), so that an installed libcachalot_core.a
# serves other compilers too.
set(CACHALOT_LTO_COMPILE "")
set(CACHALOT_LTO_LINK "")
if(CACHALOT_LTO)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CACHALOT_LTO_COMPILE -flto=auto -ffat-lto-objects)
    set(CACHALOT_LTO_LINK -flto=auto)
  else()
    message(STATUS "cachalot: CACHALOT_LTO is for GCC; ${CMAKE_CXX_COMPILER_ID} builds without it")
  endif()
endif()
