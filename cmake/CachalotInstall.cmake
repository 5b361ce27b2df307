# `cmake --install`: headers, both libraries, the command, and a package for find_package(cachalot).

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(installed cachalot_core cachalot_pool cachalot_kernels)
if(TARGET cachalot)
  list(APPEND installed cachalot)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cachalot)

install(TARGETS ${installed} EXPORT cachalotTargets FILE_SET HEADERS FILE_SET cuda_headers)
if(TARGET cachalot_cli)
  install(TARGETS cachalot_cli)
endif()
if(TARGET cachalot_simulator)
  install(TARGETS cachalot_simulator LIBRARY DESTINATION ${CACHALOT_SIMULATOR_INSTALL_DIR})
  install(FILES simulator/python/sitecustomize.py DESTINATION ${CACHALOT_SIMULATOR_INSTALL_DIR}/python)
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
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
