# libcachalot_torch.so, the allocator as PyTorch's plug-in; and the Python package: laid out in the build tree for tests, installed as
# the component `python` for wheels.

set(CACHALOT_ADAPTERS "" CACHE PATH
  "Folder of ready adapters (packaging/adapters.py) for the wheel; empty: one for the PyTorch that the build finds, if any")

if(NOT CACHALOT_HAS_CUDA OR NOT CACHALOT_BUILD_PYTORCH)
  return()
elseif("diagnostics" IN_LIST CACHALOT_ABSENT_WINGS OR NOT DEFINED c_functions)
  message(STATUS "cachalot: pytorch/ is not built: it needs diagnostics/ and c_api/")
  return()
endif()

# In build/<preset>/pytorch. It knows nothing of torch; pytorch/adapter, compiled for the torch that is installed when that is first
# used, does. The allocator in it is hidden, like libcachalot.so's.
cachalot_files(plug_sources pytorch
  plug/descriptor_exchange.cpp plug/garbage.cpp plug/hooks.cpp plug/host_plug.cpp plug/leak_hooks.cpp plug/lent_tensors.cpp
  plug/library_hooks.cpp plug/limit_hooks.cpp plug/oom_hooks.cpp plug/plug.cpp plug/pool_hooks.cpp plug/process_allocator.cpp
  plug/python_api.cpp plug/report_hooks.cpp)
add_library(cachalot_torch SHARED ${plug_sources} ${c_functions})
set_target_properties(cachalot_torch PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/pytorch
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
target_include_directories(cachalot_torch PRIVATE ${PROJECT_SOURCE_DIR}/c_api/include)
cachalot_unity(cachalot_torch)
target_link_options(cachalot_torch PRIVATE
  ${CACHALOT_SHARED_LINK} -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
target_link_libraries(cachalot_torch PRIVATE
  $<BUILD_INTERFACE:cachalot_kernels> $<BUILD_INTERFACE:cachalot_layers> cachalot_pool)

# The adapter for the torch that the interpreter has while the wheel is made, if it has one. PYTHONPATH replaces the one
# by which pip isolates builds: what is compiled is for this very torch, or is not looked at.
function(cachalot_install_prebuilt_adapter)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  install(CODE "
    execute_process(
      COMMAND \${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_BINARY_DIR}/python
              ${Python_EXECUTABLE} -c
              \"import pathlib; from cachalot._bindings import adapter; adapter.prebuild(pathlib.Path('\${CMAKE_INSTALL_PREFIX}/prebuilt'))\"
      RESULT_VARIABLE status ERROR_VARIABLE error OUTPUT_QUIET)
    if(NOT status EQUAL 0)
      string(STRIP \"\${error}\" error)
      string(REGEX REPLACE \".*\\n\" \"\" error \"\${error}\")
      message(STATUS \"no adapter is prebuilt; it is compiled at first use (\${error})\")
    endif()" COMPONENT python EXCLUDE_FROM_ALL)
endfunction()

# build/<preset>/python/cachalot, of links: PYTHONPATH=build/<preset>/python imports it as it stands in the source tree.
function(cachalot_python_package)
  set(package ${PROJECT_BINARY_DIR}/python/cachalot)
  set(sources ${PROJECT_SOURCE_DIR}/pytorch/cachalot)
  file(GLOB_RECURSE modules RELATIVE ${sources} CONFIGURE_DEPENDS ${sources}/*.py)
  file(REMOVE_RECURSE ${package})
  file(MAKE_DIRECTORY ${package}/native/include)
  foreach(file IN LISTS modules ITEMS py.typed)
    cmake_path(GET file PARENT_PATH room)
    cachalot_link(${sources}/${file} ${package}/${room})
  endforeach()
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/adapter ${package}/native)
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/plug/plug.h ${package}/native)
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/plug/host_plug.h ${package}/native)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/allocator/include/cachalot/*.h)
  foreach(header IN LISTS headers ITEMS ${c_library_headers} ${PROJECT_SOURCE_DIR}/pytorch/include/cachalot/enable_torch.h)
    cachalot_link(${header} ${package}/native/include/cachalot)
  endforeach()
  set(library ${package}/native/libcachalot_torch.so)
  file(CREATE_LINK ${PROJECT_BINARY_DIR}/pytorch/libcachalot_torch.so ${library} SYMBOLIC)  # built later
  file(CONFIGURE OUTPUT ${package}/_version.py CONTENT "__version__ = \"@PROJECT_VERSION@\"\n" @ONLY)

  # Wheels: scikit-build-core puts the .py files in, and this beside them, at cachalot/native.
  install(TARGETS cachalot_torch LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/pytorch/adapter DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/pytorch/plug/plug.h ${PROJECT_SOURCE_DIR}/pytorch/plug/host_plug.h DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/allocator/include/cachalot DESTINATION include COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES ${c_library_headers} ${PROJECT_SOURCE_DIR}/pytorch/include/cachalot/enable_torch.h
    DESTINATION include/cachalot COMPONENT python EXCLUDE_FROM_ALL)
  if(DEFINED SKBUILD)
    install(FILES ${package}/_version.py ${PROJECT_SOURCE_DIR}/SKILL.md DESTINATION ${SKBUILD_PLATLIB_DIR}/cachalot COMPONENT python EXCLUDE_FROM_ALL)
    if(CACHALOT_ADAPTERS)
      install(DIRECTORY ${CACHALOT_ADAPTERS}/ DESTINATION prebuilt COMPONENT python EXCLUDE_FROM_ALL)
    else()
      cachalot_install_prebuilt_adapter()
    endif()
  endif()
endfunction()
cachalot_python_package()

# The target that a wheel is made of: what is there of plug-in, command and simulator. The command goes where Python's programs
# are, and the rest where it looks for it. Shells find its completions there.
function(cachalot_python_wheel)
  add_custom_target(cachalot_python)
  foreach(target IN ITEMS cachalot_torch cachalot_cli cachalot_simulator)
    if(TARGET ${target})
      add_dependencies(cachalot_python ${target})
    endif()
  endforeach()
  if(NOT DEFINED SKBUILD OR NOT TARGET cachalot_cli)
    return()
  endif()
  set(data ${SKBUILD_DATA_DIR})
  install(TARGETS cachalot_cli RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
  foreach(shell_and_file IN ITEMS
      "bash share/bash-completion/completions cachalot" "zsh share/zsh/site-functions _cachalot"
      "fish share/fish/vendor_completions.d cachalot.fish")
    separate_arguments(words UNIX_COMMAND ${shell_and_file})
    list(POP_FRONT words shell folder file)
    install(CODE "
      file(MAKE_DIRECTORY ${data}/${folder})
      execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:cachalot_cli> completion ${shell} OUTPUT_FILE ${data}/${folder}/${file}
        COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python EXCLUDE_FROM_ALL)
  endforeach()
  if(TARGET cachalot_simulator)
    set(simulator ${data}/${CACHALOT_SIMULATOR_INSTALL_DIR})
    install(TARGETS cachalot_simulator LIBRARY DESTINATION ${simulator} COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY ${PROJECT_BINARY_DIR}/simulator/cudart DESTINATION ${simulator} COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/simulator/python/ DESTINATION ${simulator}/python
      COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.py)
  endif()
endfunction()
cachalot_python_wheel()
