# GoogleTest and GoogleMock of their sources, which the compiler of the tests compiles.
if(NOT TARGET cachalot_packed_gtest)
  set(sources ${CMAKE_CURRENT_LIST_DIR}/../../../src/googletest)
  add_library(cachalot_packed_gtest STATIC EXCLUDE_FROM_ALL
    ${sources}/googletest/src/gtest-all.cc ${sources}/googlemock/src/gmock-all.cc)
  target_include_directories(cachalot_packed_gtest SYSTEM
    PUBLIC ${sources}/googletest/include ${sources}/googlemock/include PRIVATE ${sources}/googletest ${sources}/googlemock)
  find_package(Threads REQUIRED)
  target_link_libraries(cachalot_packed_gtest PUBLIC Threads::Threads)
  add_library(cachalot_packed_gtest_main STATIC EXCLUDE_FROM_ALL ${sources}/googletest/src/gtest_main.cc)
  target_link_libraries(cachalot_packed_gtest_main PUBLIC cachalot_packed_gtest)
  add_library(GTest::gtest ALIAS cachalot_packed_gtest)
  add_library(GTest::gmock ALIAS cachalot_packed_gtest)
  add_library(GTest::gtest_main ALIAS cachalot_packed_gtest_main)
endif()
