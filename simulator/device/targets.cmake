# cachalot::simulated_device, static: a device of cachalot::core without a GPU, which checks what is done with it.

cachalot_static_library(simulated_device simulator/device
  SOURCES address_space.cpp device_timing.cpp hazard_checker.cpp ipc_registry.cpp simulated_device.cpp simulated_device_state.cpp
          simulated_devices.cpp simulated_memory.cpp simulated_streams.cpp simulation_settings.cpp
  HEADERS managed_memory.h simulated_device.h)
target_include_directories(cachalot_simulated_device PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
target_link_libraries(cachalot_simulated_device PUBLIC cachalot_core)
