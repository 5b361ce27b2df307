// The numbers of cudnn_graph.h that the simulator needs to know.
#pragma once

namespace cachalot::simulator::cudnn {

// cudnnStatus_t
inline constexpr int kSuccess = 0;
inline constexpr int kBadParameter = 2000;
inline constexpr int kNotSupported = 3000;

// cudnnBackendDescriptorType_t
inline constexpr int kEngine = 2;
inline constexpr int kHeuristics = 4;
inline constexpr int kPlan = 5;
inline constexpr int kDevice = 38;

// cudnnBackendAttributeName_t
inline constexpr int kDeviceOfHeuristics = 204;
inline constexpr int kEngineOfConfiguration = 300;
inline constexpr int kWorkspaceOfConfiguration = 303;
inline constexpr int kConfigurationOfPlan = 401;
inline constexpr int kWorkspaceOfPlan = 402;
inline constexpr int kDeviceOfPlan = 407;
inline constexpr int kBehaviorOfEngine = 1305;
inline constexpr int kDeviceOfEngine = 1307;
inline constexpr int kDeviceProperties = 2702;  // as JSON

// cudnnBackendBehaviorNote_t
inline constexpr int kCompiledAtRuntime = 0;

// cudnnBackendAttributeType_t
inline constexpr int kHandle = 0;
inline constexpr int kBoolean = 2;
inline constexpr int kInt64 = 3;
inline constexpr int kNumericalNote = 11;
inline constexpr int kDescriptor = 15;
inline constexpr int kBehaviorNote = 19;
inline constexpr int kChar = 24;

}  // namespace cachalot::simulator::cudnn
