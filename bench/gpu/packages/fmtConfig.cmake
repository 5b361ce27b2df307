# fmt as headers alone.
foreach(name IN ITEMS fmt::fmt fmt::fmt-header-only)
  if(NOT TARGET ${name})
    add_library(${name} INTERFACE IMPORTED)
    set_target_properties(${name} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/../../../include INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
  endif()
endforeach()
