include(CMakeFindDependencyMacro)
find_dependency(cachalot 0.1 COMPONENTS core)
include(${CMAKE_CURRENT_LIST_DIR}/shelfTargets.cmake)
