// Plans of cuDNN, made by the program's own cuDNN. Since 9.8 it plans for a GPU that is not there, if it is told the
// GPU's properties: it chooses engines and says what workspace each needs, as on that GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cachalot/version.h"

CACHALOT_BEGIN
class JsonWriter;
CACHALOT_END

namespace cachalot::simulator {

struct Config;

// The numbers of cudnn_graph.h that the simulator needs to know.
namespace cudnn {

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

}  // namespace cudnn

// The versions that the do-nothing libraries claim: those that come with CUDA 13.0.
inline constexpr int kMathLibraryVersion = 130100;
inline constexpr int kRuntimeVersion = 13000;
inline constexpr int kCudnnVersion = 91900;

// Functions of cudnn_graph.h. Descriptors are the library's.
struct CudnnFunctions {
  int (*create)(int type, void** descriptor) = nullptr;
  int (*destroy)(void* descriptor) = nullptr;
  int (*set)(void* descriptor, int name, int type, std::int64_t count, const void* elements) = nullptr;
  int (*get)(void* descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
             void* elements) = nullptr;
  int (*finalize)(void* descriptor) = nullptr;
  std::size_t (*version)() = nullptr;
  void (*last_error)(char* text, std::size_t bytes) = nullptr;
};

class CudnnPlanner {
 public:
  // Null, and a line on standard error says why, if the program's cuDNN cannot plan without a GPU. Made at the first
  // call, and never destroyed. Thread-safe.
  static const CudnnPlanner* get();

  // A descriptor that plans, or leads to plans, is made for the simulated GPU. Returns cuDNN's status.
  int create(int type, void** descriptor) const;
  const CudnnFunctions& cudnn() const { return cudnn_; }

 private:
  CudnnPlanner(const CudnnFunctions& cudnn, void* device) : cudnn_(cudnn), device_(device) {}
  static const CudnnPlanner* make();

  CudnnFunctions cudnn_;
  void* device_;  // its descriptor of the GPU's properties
};

// Returns the version of the program's cuDNN, such as 91900, or of the one that is simulated if the program has loaded
// none.
std::size_t cudnn_version();

// Returns what cuDNN would read of such a device, in the format of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
std::string cudnn_device_properties(const Config& config);

// Notes that a plan was executed. If `workspace_bytes` is null, its workspace is not known and counts as 0.
void note_cudnn_execution(const std::int64_t* workspace_bytes);
// null, or an object: version, executions, planned (all workspaces are known), largest_workspace_bytes.
void write_cudnn_use(JsonWriter& json);

}  // namespace cachalot::simulator
