# cmake -D SOURCE_DIR=<repository> -D COMPILER=<c++> -P check_locks.cmake
# locks.cpp compiles; with each planted mistake it does not, and the compiler names the rule. Clang's thread-safety analysis
# finds them all, GCC those that the tokens' types forbid.

cmake_minimum_required(VERSION 3.25)

function(compile output_variable result_variable)
  execute_process(
    COMMAND ${COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -Werror ${analysis} ${ARGN}
            -I${SOURCE_DIR}/allocator -I${SOURCE_DIR}/allocator/include ${CMAKE_CURRENT_LIST_DIR}/locks.cpp
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  set(${output_variable} "${output}" PARENT_SCOPE)
  set(${result_variable} "${result}" PARENT_SCOPE)
endfunction()

function(expect_refused mistake rule)
  compile(output result -DCACHALOT_PLANT_${mistake})
  if(result EQUAL 0)
    message(SEND_ERROR "${COMPILER} accepts ${mistake}")
  elseif(NOT output MATCHES "${rule}")
    message(SEND_ERROR "${COMPILER} refuses ${mistake}, but not by '${rule}': ${output}")
  endif()
endfunction()

execute_process(COMMAND ${COMPILER} --version OUTPUT_VARIABLE version)
set(analysis)
if(version MATCHES "clang")
  set(analysis -Wthread-safety)
endif()
compile(output result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "locks.cpp does not compile: ${output}")
endif()
if(version MATCHES "clang")
  expect_refused(ACCESS_WHILE_LET_GO "requires holding role 'device_lock'")
  expect_refused(UNLOCKED_READ "requires holding role 'device_lock'")
  expect_refused(UNLOCKED_WRITE "requires holding role 'device_lock'")
  expect_refused(UNLOCKED_CALL "requires holding role 'device_lock'")
endif()
expect_refused(CALL_WITHOUT_TOKEN "Held")
expect_refused(LETTING_GO_OF_A_CONST_TOKEN "const")
