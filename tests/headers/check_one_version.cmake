# cmake -D COMPILER=<C++ compiler> -D INCLUDES=<flags> -D VERSION_HEADER=<version.h> -D LIBRARY=<libcachalot_core.a>
#       -D LIBRARIES=<flags> -D WORK_DIR=<scratch folder> -P check_one_version.cmake
# A program with the library's own headers links, and with those of another patch. With headers of another minor version it
# does not, and the message says why.

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR}/cachalot)
file(WRITE ${WORK_DIR}/program.cpp "#include \"cachalot/caching_allocator.h\"\nint main() { return cachalot::version() == nullptr; }\n")

function(link result output)
  execute_process(COMMAND ${COMPILER} -std=c++17 -O0 ${ARGN} ${INCLUDES} ${WORK_DIR}/program.cpp ${LIBRARY} ${LIBRARIES}
      -o ${WORK_DIR}/program
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  set(${result} ${status} PARENT_SCOPE)
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

link(result output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "with headers and a library of one version:\n${output}")
endif()

# The headers with another number in place of the one that is called `part`: MINOR or PATCH.
file(READ ${VERSION_HEADER} header)
function(write_other_version part)
  string(REGEX REPLACE "(#define CACHALOT_VERSION_${part}) [0-9]+" "\\1 98" other "${header}")
  if(other STREQUAL header)
    message(FATAL_ERROR "${VERSION_HEADER} does not define CACHALOT_VERSION_${part}")
  endif()
  file(WRITE ${WORK_DIR}/cachalot/version.h "${other}")
endfunction()

write_other_version(PATCH)
link(result output -I${WORK_DIR})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "with headers of another patch than the library's:\n${output}")
endif()

write_other_version(MINOR)
link(result output -I${WORK_DIR})
if(result EQUAL 0)
  message(FATAL_ERROR "a program with headers of another version than its library's links")
endif()
if(NOT output MATCHES "undefined reference to [^\n]*headers_and_library_have_one_version::v[0-9]+_98[^0-9]")
  message(FATAL_ERROR "the linker does not say that the versions differ:\n${output}")
endif()
