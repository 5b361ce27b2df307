# The sources of the reports of --html, as a C++ file: no Python and no node is needed to build it.
#
# As a script (-P) it writes OUTPUT from FILES, paths in the folder FOLDER separated by "|".
if(CMAKE_SCRIPT_MODE_FILE)
  string(REPLACE "|" ";" files "${FILES}")
  set(arrays "")
  set(table "")
  set(number 0)
  foreach(name IN LISTS files)
    file(READ ${FOLDER}/${name} hex HEX)
    file(SHA256 ${FOLDER}/${name} hash)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
    string(REGEX REPLACE "(('.x[0-9a-f]+',){24})" "\\1\n" bytes "${bytes}")
    string(APPEND arrays "constexpr char kFile${number}[] = {${bytes}};\n")
    string(APPEND table "    EmbeddedFile{.name = \"${name}\", .text = {kFile${number}, sizeof kFile${number}}, .sha256_hex = \"${hash}\"},\n")
    math(EXPR number "${number} + 1")
  endforeach()
  file(WRITE ${OUTPUT} "// Written by tools/html/embed.cmake.
#include \"tools/output/html_report.h\"

#include <array>

namespace cachalot::tools {
namespace {

${arrays}
constexpr std::array kFiles = {
${table}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() { return kFiles; }

}  // namespace cachalot::tools
")
  return()
endif()

# Adds the sources in tools/html to the library, in the order in which a report has them.
function(cachalot_embed_html library)
  set(folder ${PROJECT_SOURCE_DIR}/tools/html)
  list(TRANSFORM ARGN PREPEND ${folder}/ OUTPUT_VARIABLE paths)
  set(output ${PROJECT_BINARY_DIR}/tools/embedded_files.cpp)
  list(JOIN ARGN "|" files)
  add_custom_command(OUTPUT ${output} VERBATIM
    COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D "FILES=${files}" -D OUTPUT=${output} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    DEPENDS ${paths} ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    COMMENT "Embedding the sources of the reports")
  set_source_files_properties(${output} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${library} PRIVATE ${output})
endfunction()
