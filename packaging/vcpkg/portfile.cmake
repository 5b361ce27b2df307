# A port of vcpkg, to be used where it lies:
#
#   vcpkg install cachalot --overlay-ports=packaging/vcpkg
#
# The source is this checkout; a port in a registry names an archive and its digest instead (vcpkg_from_github).
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

# Beside the static libraries there is always the C API, libcachalot.so, and the simulated libraries of CUDA.
set(VCPKG_POLICY_DLLS_IN_STATIC_LIBRARY enabled)
string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" "dynamic" SHARED)
vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES cuda CACHALOT_CUDA tools CACHALOT_BUILD_TOOLS)
set(SIMULATOR OFF)  # which the command starts
if("cuda" IN_LIST FEATURES AND "tools" IN_LIST FEATURES)
  set(SIMULATOR ON)
endif()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${FEATURE_OPTIONS}
    -DBUILD_SHARED_LIBS=${SHARED}
    -DCACHALOT_BUILD_SIMULATOR=${SIMULATOR}
    -DCACHALOT_BUILD_TESTS=OFF
    -DCACHALOT_BUILD_BENCHMARKS=OFF
    -DCACHALOT_BUILD_EXAMPLES=OFF
    -DCACHALOT_BUILD_FUZZERS=OFF
    -DCACHALOT_BUILD_GPU_CHECKS=OFF
    -DCACHALOT_BUILD_PYTORCH=OFF
  OPTIONS_DEBUG
    -DCACHALOT_BUILD_TOOLS=OFF
    -DCACHALOT_BUILD_SIMULATOR=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/cachalot)
vcpkg_fixup_pkgconfig()

if("tools" IN_LIST FEATURES)
  # The command finds the simulator in ../lib, as in any prefix.
  vcpkg_copy_tools(TOOL_NAMES cachalot DESTINATION "${CURRENT_PACKAGES_DIR}/tools/${PORT}/bin" AUTO_CLEAN)
  if(SIMULATOR)
    file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/tools/${PORT}/lib")
    file(RENAME "${CURRENT_PACKAGES_DIR}/lib/cachalot" "${CURRENT_PACKAGES_DIR}/tools/${PORT}/lib/cachalot")
  endif()
endif()
file(REMOVE_RECURSE
  "${CURRENT_PACKAGES_DIR}/debug/include"
  "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE")
