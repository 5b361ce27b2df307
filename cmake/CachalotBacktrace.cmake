# libbacktrace, which reads files and lines from debug information. It comes with GCC, in a folder that g++ names; Clang uses
# the same archive. Sets CACHALOT_HAS_LIBBACKTRACE; where it is on, the target cachalot_backtrace stands for the archive.
# Also part of the installed package: who links cachalot::core links the archive of his own compiler.

set(CACHALOT_BACKTRACE_FOLDERS "")
foreach(compiler IN ITEMS ${CMAKE_CXX_COMPILER} g++)
  execute_process(COMMAND ${compiler} -print-file-name=libbacktrace.a
    OUTPUT_VARIABLE archive ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(status EQUAL 0 AND IS_ABSOLUTE "${archive}")
    cmake_path(GET archive PARENT_PATH folder)
    list(APPEND CACHALOT_BACKTRACE_FOLDERS ${folder})
  endif()
endforeach()
find_library(CACHALOT_BACKTRACE_LIBRARY NAMES libbacktrace.a backtrace HINTS ${CACHALOT_BACKTRACE_FOLDERS})
find_path(CACHALOT_BACKTRACE_INCLUDE backtrace.h HINTS ${CACHALOT_BACKTRACE_FOLDERS} PATH_SUFFIXES include)
mark_as_advanced(CACHALOT_BACKTRACE_LIBRARY CACHALOT_BACKTRACE_INCLUDE)

# An archive that is not position-independent serves no shared library.
set(CACHALOT_HAS_LIBBACKTRACE OFF)
if(CACHALOT_BACKTRACE_LIBRARY AND CACHALOT_BACKTRACE_INCLUDE)
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/cachalot_backtrace_probe)
  file(WRITE ${probe}/probe.cpp
    "#include <backtrace.h>\nbacktrace_state* probe() { return backtrace_create_state(nullptr, 0, nullptr, nullptr); }\n")
  # A folder of its own: beside GCC's header lie GCC's intrinsics, which are nothing for Clang.
  configure_file(${CACHALOT_BACKTRACE_INCLUDE}/backtrace.h ${probe}/include/backtrace.h COPYONLY)
  try_compile(CACHALOT_BACKTRACE_LINKS ${probe}/build SOURCES ${probe}/probe.cpp
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${probe}/include" -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    LINK_OPTIONS -shared LINK_LIBRARIES ${CACHALOT_BACKTRACE_LIBRARY})
  if(CACHALOT_BACKTRACE_LINKS)
    set(CACHALOT_HAS_LIBBACKTRACE ON)
    if(NOT TARGET cachalot_backtrace)
      add_library(cachalot_backtrace UNKNOWN IMPORTED GLOBAL)
      set_target_properties(cachalot_backtrace PROPERTIES
        IMPORTED_LOCATION ${CACHALOT_BACKTRACE_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${probe}/include)
    endif()
  endif()
endif()
