# `cmake --install`: headers, the libraries, the command, a package for find_package(cachalot) and one for pkg-config; `cpack -G DEB`
# makes a Debian package of the same files.

option(CACHALOT_INSTALL "Install cachalot; a project that contains it and exports targets of its own needs that"
  ${PROJECT_IS_TOP_LEVEL})
list(TRANSFORM CACHALOT_LIBRARIES PREPEND cachalot_ OUTPUT_VARIABLE static_libraries)
if(NOT CACHALOT_INSTALL)
  if(NOT PROJECT_IS_TOP_LEVEL)  # a project that contains cachalot builds of it what it links
    foreach(library IN LISTS static_libraries ITEMS cachalot cachalot_cpp)
      if(TARGET ${library})
        set_property(TARGET ${library} PROPERTY EXCLUDE_FROM_ALL ON)
      endif()
    endforeach()
  endif()
  return()
endif()

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(installed ${static_libraries})
if(BUILD_SHARED_LIBS)
  list(TRANSFORM CACHALOT_LIBRARIES PREPEND cachalot_shared_ OUTPUT_VARIABLE shared_libraries)
  set(installed cachalot_cpp ${shared_libraries})
endif()
if(TARGET cachalot_mr)
  list(APPEND installed cachalot_mr)
endif()
if(TARGET cachalot)
  list(APPEND installed cachalot)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cachalot)

install(TARGETS ${installed} EXPORT cachalotTargets FILE_SET HEADERS FILE_SET cuda_headers FILE_SET adapter_headers)
if(TARGET cachalot_cli)
  install(TARGETS cachalot_cli)
  if(NOT CMAKE_CROSSCOMPILING)  # the command writes its own completion scripts and manual page
    set(share ${PROJECT_BINARY_DIR}/tools/share)
    install(CODE "
      file(MAKE_DIRECTORY ${share})
      foreach(part IN ITEMS \"completion;bash;cachalot\" \"completion;zsh;_cachalot\" \"completion;fish;cachalot.fish\"
          \"man;cachalot.1\")
        list(POP_BACK part file)
        execute_process(COMMAND $<TARGET_FILE:cachalot_cli> \${part} OUTPUT_FILE ${share}/\${file}
          COMMAND_ERROR_IS_FATAL ANY)
      endforeach()")
    install(FILES ${share}/cachalot DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${share}/_cachalot DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${share}/cachalot.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
    install(FILES ${share}/cachalot.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endif()
endif()
if(TARGET cachalot_simulator)
  install(TARGETS cachalot_simulator LIBRARY DESTINATION ${CACHALOT_SIMULATOR_INSTALL_DIR})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/simulator/cudart DESTINATION ${CACHALOT_SIMULATOR_INSTALL_DIR})
  install(DIRECTORY simulator/python/ DESTINATION ${CACHALOT_SIMULATOR_INSTALL_DIR}/python FILES_MATCHING PATTERN *.py)
  install(CODE "
    set(driver \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CACHALOT_SIMULATOR_INSTALL_DIR}/driver)
    file(MAKE_DIRECTORY \${driver})
    file(CREATE_LINK ../libcachalot_simulator.so \${driver}/libcuda.so.1 SYMBOLIC)")
endif()
install(EXPORT cachalotTargets NAMESPACE cachalot:: DESTINATION ${package_dir})

configure_package_config_file(
  cmake/cachalotConfig.cmake.in ${PROJECT_BINARY_DIR}/cachalotConfig.cmake INSTALL_DESTINATION ${package_dir})
# 0.x: an interface may change with each minor version.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cachalotConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cachalotConfig.cmake ${PROJECT_BINARY_DIR}/cachalotConfigVersion.cmake
    cmake/CachalotBacktrace.cmake
  DESTINATION ${package_dir})
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/cachalot)

# ---- For pkg-config: cachalot, the C API; and cachalot-<name> for each library cachalot::<name> ---------------------------

# <name>.pc. The static libraries' own needs are in Libs, and in no Libs.private: nothing links these without them.
function(cachalot_pkg_config name contents)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "REQUIRES;LIBS;CFLAGS")
  list(JOIN arg_REQUIRES " " arg_REQUIRES)
  list(JOIN arg_LIBS " " arg_LIBS)
  file(RELATIVE_PATH CACHALOT_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(cmake/cachalot.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# What cachalot::core is linked with. libbacktrace by its name where it is GCC's, in a folder of which each version looks into its own.
function(cachalot_link_flags_of_core result)
  set(flags -lcachalot_core)
  if(CACHALOT_HAS_LIBBACKTRACE)
    cmake_path(GET CACHALOT_BACKTRACE_LIBRARY PARENT_PATH folder)
    if(folder IN_LIST CACHALOT_BACKTRACE_FOLDERS)
      list(APPEND flags -lbacktrace)
    else()
      list(APPEND flags ${CACHALOT_BACKTRACE_LIBRARY})
    endif()
  endif()
  list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl)
  set(${result} ${flags} -pthread ${dl} PARENT_SCOPE)
endfunction()

function(cachalot_pkg_config_of_library name)
  set(flags -lcachalot_${name})
  set(definitions "")
  if(BUILD_SHARED_LIBS)  # one library for all
    set(flags -lcachalot_cpp)
    set(definitions -DCACHALOT_SHARED)
  elseif(name STREQUAL "core")
    cachalot_link_flags_of_core(flags)
  endif()
  get_target_property(needs cachalot_${name} INTERFACE_LINK_LIBRARIES)
  list(FILTER needs INCLUDE REGEX "^cachalot_[a-z_]+$")
  list(TRANSFORM needs REPLACE "^cachalot_" cachalot-)
  cachalot_pkg_config(cachalot-${name} "cachalot::${name} of C++" REQUIRES ${needs} LIBS ${flags}
    CFLAGS ${definitions})
endfunction()

foreach(library IN LISTS CACHALOT_LIBRARIES)
  cachalot_pkg_config_of_library(${library})
endforeach()
if(TARGET cachalot)
  cachalot_pkg_config(cachalot "the C API" LIBS -lcachalot)
endif()

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cachalot)
set(CPACK_PACKAGE_CONTACT "the developers of cachalot")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPU memory allocator with PyTorch's caching policy, and tools for GPU memory")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
find_program(CACHALOT_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(CACHALOT_SHLIBDEPS)
if(CACHALOT_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
endif()
include(CPack)
