# How targets of any folder are made; the folders' files targets.cmake list what there is to make.

find_package(Threads REQUIRED)

# The files of a folder as absolute paths; remembers that they are listed.
function(cachalot_files result folder)
  set(files ${ARGN})
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/${folder}/)
  set_property(GLOBAL APPEND PROPERTY cachalot_listed ${files})
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# A source file that no list names is a mistake. Call it last; where a part is not built, its lists are not read.
function(cachalot_require_all_listed)
  if(NOT (CACHALOT_BUILD_TESTS AND CACHALOT_BUILD_BENCHMARKS AND CACHALOT_BUILD_TOOLS AND CACHALOT_BUILD_EXAMPLES))
    return()
  endif()
  file(GLOB_RECURSE found CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/allocator/*.cpp ${PROJECT_SOURCE_DIR}/allocator/include/*.h ${PROJECT_SOURCE_DIR}/tools/*.cpp
    ${PROJECT_SOURCE_DIR}/c_api/*.cpp ${PROJECT_SOURCE_DIR}/c_api/include/*.h
    ${PROJECT_SOURCE_DIR}/diagnostics/*.cpp ${PROJECT_SOURCE_DIR}/diagnostics/include/*.h
    ${PROJECT_SOURCE_DIR}/simulator/device/*.cpp ${PROJECT_SOURCE_DIR}/simulator/device/include/*.h
    ${PROJECT_SOURCE_DIR}/pool/*.cpp ${PROJECT_SOURCE_DIR}/pool/include/*.h ${PROJECT_SOURCE_DIR}/adapters/include/*.h
    ${PROJECT_SOURCE_DIR}/kernels/*.cpp ${PROJECT_SOURCE_DIR}/kernels/*.cu
    ${PROJECT_SOURCE_DIR}/kernels/include/*.h ${PROJECT_SOURCE_DIR}/kernels/include/*.cuh
    ${PROJECT_SOURCE_DIR}/tests/*.cpp ${PROJECT_SOURCE_DIR}/tests/*.c ${PROJECT_SOURCE_DIR}/bench/*.cpp
    ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*.c)
  if(TARGET cachalot_simulator)
    file(GLOB_RECURSE simulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/simulator/*.cpp)
    list(APPEND found ${simulator})
  endif()
  if(TARGET cachalot_torch)
    file(GLOB plugin CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pytorch/plug/*.cpp)
    list(APPEND found ${plugin})
  endif()
  list(FILTER found EXCLUDE REGEX "/(bench|tests)/pytorch/")                        # compiled by Python programs
  if(NOT CACHALOT_BUILD_FUZZERS)
    list(FILTER found EXCLUDE REGEX "/tests/fuzz/")
  endif()
  if(NOT CACHALOT_BUILD_GPU_CHECKS)
    list(FILTER found EXCLUDE REGEX "/bench/gpu/")
  endif()
  if(NOT TARGET cachalot_replay)
    list(FILTER found EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/tools/")
  endif()
  if("simulator/device" IN_LIST CACHALOT_ABSENT_WINGS)
    list(FILTER found EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/examples/")
  endif()
  if(NOT TARGET test_adapters)
    list(FILTER found EXCLUDE REGEX "/tests/adapters/")
  endif()
  if(NOT TARGET test_simulator)
    list(FILTER found EXCLUDE REGEX "/(tests/(mr|plug|simulator)/|bench/simulator_calls)")
  endif()
  list(FILTER found EXCLUDE REGEX "/tests/package/")                                # a project of its own
  list(FILTER found EXCLUDE REGEX "/tests/locks/")                                  # what compilers must refuse, too
  list(FILTER found EXCLUDE REGEX "/tests/aarch64/")                                # compiled by its script, for this machine
  get_property(listed GLOBAL PROPERTY cachalot_listed)
  list(REMOVE_ITEM found ${listed})
  if(found)
    string(JOIN "\n  " files ${found})
    message(FATAL_ERROR "in no list of a targets.cmake:\n  ${files}")
  endif()
endfunction()

# What our own code sees beyond the public headers: the layers' headers and the folders of the repository. Nothing of it is
# in what we install.
add_library(cachalot_layers INTERFACE)
target_include_directories(cachalot_layers INTERFACE ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR})
target_link_libraries(cachalot_layers INTERFACE
  $<TARGET_NAME_IF_EXISTS:cachalot_diagnostics> $<TARGET_NAME_IF_EXISTS:cachalot_simulated_device> cachalot_core cachalot_flags Threads::Threads)
target_compile_definitions(cachalot_layers INTERFACE CACHALOT_HAS_CUDA=$<BOOL:${CACHALOT_HAS_CUDA}>)

# The libraries that the command is built with. Names all that are missing, and what to type.
function(cachalot_require_libraries_of_command)
  set(missing "")
  set(packages "")
  foreach(library IN ITEMS "fmt;;libfmt-dev" "CLI11;;libcli11-dev" "nlohmann_json;3.11;nlohmann-json3-dev" "ZLIB;;zlib1g-dev")
    list(GET library 0 name)
    list(GET library 1 version)
    list(GET library 2 package)
    find_package(${name} ${version} QUIET)
    if(NOT ${name}_FOUND)
      list(APPEND missing ${name} ${version})
      list(APPEND packages ${package})
    endif()
  endforeach()
  if(missing)
    list(JOIN missing " " missing)
    list(JOIN packages " " packages)
    set(without "configure with -DCACHALOT_BUILD_TOOLS=OFF")
    if(DEFINED SKBUILD)
      set(without "pip install . -C cmake.define.CACHALOT_BUILD_TOOLS=OFF")
    endif()
    message(FATAL_ERROR "The command cachalot is built with libraries that are not here: ${missing}.\n"
      "  To install them (Debian's and Ubuntu's names):  sudo apt-get install ${packages}\n"
      "  To do without the command:  ${without}\n")
  endif()
endfunction()

# What programs of tools/, tests/, bench/ and examples/ use besides: libraries that the allocator does without.
if(CACHALOT_BUILD_TOOLS)
  cachalot_require_libraries_of_command()
endif()
if(CACHALOT_BUILD_TOOLS OR CACHALOT_BUILD_TESTS OR CACHALOT_BUILD_BENCHMARKS OR CACHALOT_BUILD_EXAMPLES OR
   CACHALOT_BUILD_FUZZERS)
  find_package(fmt REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)
  add_library(cachalot_internal INTERFACE)
  set(fmt $<IF:$<BOOL:${CACHALOT_PORTABLE_COMMAND}>,fmt::fmt-header-only,fmt::fmt>)
  target_link_libraries(cachalot_internal INTERFACE cachalot_layers ${fmt} nlohmann_json::nlohmann_json)
  target_compile_definitions(cachalot_internal INTERFACE CACHALOT_DATA_DIR="${PROJECT_SOURCE_DIR}/data")
endif()


# cachalot::<name>, static, of files in a folder. Hidden visibility and position-independent, so that shared libraries can be
# made of it.
function(cachalot_static_library name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;HEADERS;UNITY_GROUPS")
  cachalot_files(sources ${folder} ${arg_SOURCES})
  cachalot_files(headers ${folder}/include/cachalot ${arg_HEADERS})
  set(library cachalot_${name})
  add_library(${library} STATIC ${sources})
  if(BUILD_SHARED_LIBS)
    target_compile_definitions(${library} PUBLIC CACHALOT_SHARED)  # objects of cachalot_cpp
  else()
    add_library(cachalot::${name} ALIAS ${library})
  endif()
  set_target_properties(${library} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_sources(${library} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/${folder}/include FILES ${headers})
  cachalot_unity(${library} GROUPS ${arg_UNITY_GROUPS})
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:cachalot_flags>)
endfunction()

# A library that is loaded stays (nodelete): what it has allocated, its threads' caches and its handlers of fork and exit
# outlive every dlclose. And its own calls stay inside (-Bsymbolic), whatever else of the process exports such names.
set(CACHALOT_SHARED_LINK -Wl,-z,nodelete -Wl,-Bsymbolic)

# Test programs are most of what is compiled, and their own speed matters little: the library is what is tested as it is
# shipped. So it is with the command, whose work is cachalot_replay's. Half of the compilers' time in a sanitizer build went into
# optimizing tests.
#   WORKS  the target's own code takes time as well: it is optimized a little, except in Debug builds.
function(cachalot_quick_to_build target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WORKS" "" "")
  set(level -O0)
  if(arg_WORKS)
    set(level $<IF:$<CONFIG:Debug>,-O0,-O1>)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${level}>)
endfunction()

# A link to `target` in `folder`, of the same name.
function(cachalot_link target folder)
  file(MAKE_DIRECTORY ${folder})
  cmake_path(GET target FILENAME name)
  file(CREATE_LINK ${target} ${folder}/${name} SYMBOLIC)
endfunction()
