# cmake -D HEADERS=<file, a header a line> -P check_columns.cmake
# Public headers are read in narrow windows and on web pages: ASCII, and no line has more than 100 columns.

cmake_minimum_required(VERSION 3.25)
set(columns 100)
string(REPEAT "." ${columns} any_line)
file(STRINGS ${HEADERS} headers)
foreach(header IN LISTS headers)
  file(STRINGS ${header} long REGEX "^${any_line}.")
  foreach(line IN LISTS long)
    message(SEND_ERROR "${header}: more than ${columns} columns: ${line}")
  endforeach()
  file(READ ${header} bytes HEX)
  if(bytes MATCHES "^(..)*[89abcdef].")
    message(SEND_ERROR "${header} has a character that is not ASCII")
  endif()
endforeach()
