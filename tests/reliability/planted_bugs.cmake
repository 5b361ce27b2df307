# Bugs are planted in the product, one at a time, and the tests must find each (tests/reliability/planted_bugs.py). That they can be
# planted is a test everywhere: a change of a line that a bug stands in shows at once. Planting one costs compilations, a link and
# tests: in builds for development, whose files are compiled one by one, eight of them are a test, drawn by the commit.
function(cachalot_planted_bugs)
  find_program(python python3 NO_CACHE)
  if(NOT python)
    message(STATUS "cachalot: no bugs are planted: that needs python3")
    return()
  endif()
  set(planted_bugs ${python} -B ${PROJECT_SOURCE_DIR}/tests/reliability/planted_bugs.py)
  add_test(NAME reliability.planted_bugs_apply COMMAND ${planted_bugs} --check)
  set_tests_properties(reliability.planted_bugs_apply PROPERTIES LABELS reliability TIMEOUT 60)
  if(CACHALOT_SANITIZE OR CACHALOT_UNITY_BUILD OR NOT CMAKE_GENERATOR STREQUAL Ninja)
    return()
  endif()
  add_test(NAME reliability.planted_bugs COMMAND ${planted_bugs} ${PROJECT_BINARY_DIR} --draw 8)
  set_tests_properties(reliability.planted_bugs PROPERTIES LABELS reliability TIMEOUT 1200)
endfunction()
cachalot_planted_bugs()
