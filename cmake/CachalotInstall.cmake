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
file(RELATIVE_PATH CACHALOT_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/cachalot.pc.in ${PROJECT_BINARY_DIR}/cachalot.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cachalot.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

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
