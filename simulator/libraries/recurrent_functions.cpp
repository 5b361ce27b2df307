// cuDNN's functions about recurrent networks that say how much memory a network takes and where its parameters lie.
// Descriptors are objects: the handle is the address.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "simulator/base/report.h"
#include "simulator/libraries/cudnn_planner.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace cachalot::simulator {
namespace {

// The memory of cuDNN's recurrent networks: how large their spaces are, and where their parameters lie in the weights.

// The parameters of cudnnSetRNNDescriptor_v8. The numbers are those of cudnn_adv.h.
struct RecurrentNetwork {
  int cell = 0;   // cudnnRNNMode_t
  int bias = 0;   // cudnnRNNBiasMode_t
  int input = 0;  // cudnnRNNInputMode_t
  int directions = 1;
  int layers = 0;
  std::size_t element_bytes = 0;
  std::size_t input_size = 0;
  std::size_t hidden_size = 0;
  std::size_t output_size = 0;  // of a projection, otherwise hidden_size
};

// A matrix or a bias: where it begins in the weights, and its shape.
struct RecurrentParameter {
  std::size_t offset_bytes = 0;
  int rows = 0;
  int columns = 0;
};

// The memory that cuDNN allocates beside weights and tensors. NVIDIA publishes no sizes, and they differ by version and
// algorithm: these are lower bounds, the need of backward (reserve) and of the product of a layer's inputs (work).
struct RecurrentSpaces {
  std::size_t work_bytes = 0;
  std::size_t reserve_bytes = 0;  // 0 for inference
};

enum Cell { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };      // cudnnRNNMode_t
enum Bias { kNone = 0, kInput = 1, kBoth = 2, kHidden = 3 };  // cudnnRNNBiasMode_t
constexpr int kSkipInput = 1;                                 // cudnnRNNInputMode_t

int gates(const RecurrentNetwork& network) { return network.cell == kLstm ? 4 : network.cell == kGru ? 3 : 1; }

bool projects(const RecurrentNetwork& network) { return network.output_size != network.hidden_size; }

std::size_t input_size_of(const RecurrentNetwork& network, int pseudo_layer) {
  if (pseudo_layer >= network.directions) return network.output_size * static_cast<std::size_t>(network.directions);
  return network.input == kSkipInput ? 0 : network.input_size;
}

// The matrices: of the inputs a gate each, of the hidden state a gate each, then that of the projection.
std::size_t matrix_elements(const RecurrentNetwork& network, int pseudo_layer, int linear_layer) {
  if (linear_layer < gates(network)) return network.hidden_size * input_size_of(network, pseudo_layer);
  return network.hidden_size * network.output_size;
}

int matrices(const RecurrentNetwork& network) { return 2 * gates(network) + (projects(network) ? 1 : 0); }

bool has_bias(const RecurrentNetwork& network, int linear_layer) {
  if (linear_layer < 0 || linear_layer >= 2 * gates(network)) return false;
  return network.bias == kBoth || network.bias == (linear_layer < gates(network) ? kInput : kHidden);
}

int pseudo_layers(const RecurrentNetwork& network) { return network.layers * network.directions; }

std::size_t elements_before(const RecurrentNetwork& network, int pseudo_layer, int linear_layer) {
  std::size_t elements = 0;
  for (int layer = 0; layer <= pseudo_layer && layer < pseudo_layers(network); ++layer) {
    const int end = layer < pseudo_layer ? matrices(network) : linear_layer;
    for (int i = 0; i < end; ++i) elements += matrix_elements(network, layer, i);
  }
  return elements;
}

std::size_t all_matrix_elements(const RecurrentNetwork& network) {
  return elements_before(network, pseudo_layers(network), 0);
}

// Each gate has as many biases, so that they are counted, not added up.
std::size_t biases_of_layer(const RecurrentNetwork& network) {
  const std::size_t vectors = network.bias == kNone ? 0 : network.bias == kBoth ? 2 : 1;
  return vectors * static_cast<std::size_t>(gates(network));
}

bool has_layer(const RecurrentNetwork& network, int pseudo_layer) {
  return pseudo_layer >= 0 && pseudo_layer < pseudo_layers(network);
}

// Returns the elements that backward needs of each step and unit: the gates, the output, and the state of an LSTM's
// cell or the product that a GRU's reset gate is applied to.
std::size_t kept_elements(const RecurrentNetwork& network) {
  const auto of_gates = static_cast<std::size_t>(gates(network)) * network.hidden_size;
  const bool has_state = network.cell == kLstm || network.cell == kGru;
  return of_gates + network.output_size + (has_state ? network.hidden_size : 0);
}

// Returns the exact size of all parameters.
std::size_t weight_bytes(const RecurrentNetwork& network) {
  const std::size_t biases =
      static_cast<std::size_t>(pseudo_layers(network)) * biases_of_layer(network) * network.hidden_size;
  return (all_matrix_elements(network) + biases) * network.element_bytes;
}

// Both return a parameter of a pseudo layer (a layer and a direction) by its number among the linear layers of the cell.
// cuDNN does not document the order; here all matrices come first, layer by layer, then all biases. nullopt: the network
// has no such parameter.
std::optional<RecurrentParameter> matrix_of(const RecurrentNetwork& network, int pseudo_layer, int linear_layer) {
  if (!has_layer(network, pseudo_layer) || linear_layer < 0 || linear_layer >= matrices(network)) return std::nullopt;
  const bool is_projection = linear_layer == 2 * gates(network);
  const std::size_t rows = is_projection ? network.output_size : network.hidden_size;
  const std::size_t columns = matrix_elements(network, pseudo_layer, linear_layer) / rows;
  if (columns == 0) return std::nullopt;
  return RecurrentParameter{elements_before(network, pseudo_layer, linear_layer) * network.element_bytes,
                            static_cast<int>(rows), static_cast<int>(columns)};
}

std::optional<RecurrentParameter> bias_of(const RecurrentNetwork& network, int pseudo_layer, int linear_layer) {
  if (!has_layer(network, pseudo_layer) || !has_bias(network, linear_layer)) return std::nullopt;
  const int position = network.bias == kHidden ? linear_layer - gates(network) : linear_layer;
  const std::size_t biases_before =
      static_cast<std::size_t>(pseudo_layer) * biases_of_layer(network) + static_cast<std::size_t>(position);
  const std::size_t elements = all_matrix_elements(network) + biases_before * network.hidden_size;
  return RecurrentParameter{elements * network.element_bytes, static_cast<int>(network.hidden_size), 1};
}

// `steps` are those of all sequences of the batch together.
RecurrentSpaces spaces_of(const RecurrentNetwork& network, std::size_t steps, bool training) {
  const std::size_t of_gates = static_cast<std::size_t>(gates(network) * network.directions) * network.hidden_size;
  const std::size_t kept = static_cast<std::size_t>(pseudo_layers(network)) * kept_elements(network);
  return {.work_bytes = steps * of_gates * network.element_bytes,
          .reserve_bytes = training ? steps * kept * network.element_bytes : 0};
}

using cudnn::kBadParameter, cudnn::kNotSupported, cudnn::kSuccess;
constexpr int kMostDimensions = 8;  // CUDNN_DIM_MAX

struct TensorShape {
  int type = 0;        // cudnnDataType_t
  int dimensions = 0;  // 0: none was set, or in a way that is not known here
  int sizes[kMostDimensions] = {};
  int strides[kMostDimensions] = {};
};

// A batch of sequences.
struct SequenceShape {
  std::size_t steps = 0;  // of all sequences together
};

struct NetworkDescriptor {
  RecurrentNetwork network;
  int type = 0;  // cudnnDataType_t
};

std::size_t bytes_of(int type) {
  constexpr int kDouble = 1;  // cudnnDataType_t
  constexpr int kHalf = 2;
  constexpr int kBfloat16 = 9;
  return type == kDouble ? 8 : type == kHalf || type == kBfloat16 ? 2 : 4;
}

template <typename Object>
int create(Object** descriptor) {
  if (descriptor == nullptr) return kBadParameter;
  *descriptor = new Object;
  return kSuccess;
}

template <typename Object>
int destroy(Object* descriptor) {
  delete descriptor;
  return kSuccess;
}

// A matrix, or a bias, as cuDNN describes it: in three dimensions.
void describe(const RecurrentParameter& parameter, int type, TensorShape& shape) {
  shape = {type, 3, {1, parameter.rows, parameter.columns}, {parameter.rows * parameter.columns, parameter.columns, 1}};
}

// A parameter that the network does not have is given as a null address and an empty shape.
void give(const std::optional<RecurrentParameter>& parameter, int type, const char* weights, TensorShape* shape,
          const void** address) {
  if (shape != nullptr) {
    if (parameter) {
      describe(*parameter, type, *shape);
    } else {
      *shape = {};
    }
  }
  if (address != nullptr) *address = parameter ? weights + parameter->offset_bytes : nullptr;
}

}  // namespace
}  // namespace cachalot::simulator

using namespace cachalot::simulator;

EXPORTED int cudnnCreateTensorDescriptor(TensorShape** descriptor) { return create(descriptor); }
EXPORTED int cudnnDestroyTensorDescriptor(TensorShape* descriptor) { return destroy(descriptor); }
EXPORTED int cudnnCreateRNNDataDescriptor(SequenceShape** descriptor) { return create(descriptor); }
EXPORTED int cudnnDestroyRNNDataDescriptor(SequenceShape* descriptor) { return destroy(descriptor); }
EXPORTED int cudnnCreateRNNDescriptor(NetworkDescriptor** descriptor) { return create(descriptor); }
EXPORTED int cudnnDestroyRNNDescriptor(NetworkDescriptor* descriptor) { return destroy(descriptor); }

EXPORTED int cudnnSetTensorNdDescriptor(TensorShape* shape, int type, int dimensions, const int* sizes,
                                        const int* strides) {
  if (shape == nullptr || dimensions < 1 || dimensions > kMostDimensions) return kBadParameter;
  shape->type = type;
  shape->dimensions = dimensions;
  std::copy_n(sizes, dimensions, shape->sizes);
  std::copy_n(strides, dimensions, shape->strides);
  return kSuccess;
}

EXPORTED int cudnnGetTensorNdDescriptor(const TensorShape* shape, int requested, int* type, int* dimensions, int* sizes,
                                        int* strides) {
  if (shape == nullptr || requested < 0) return kBadParameter;
  if (shape->dimensions == 0) {
    note_not_simulated("cudnnGetTensorNdDescriptor of a descriptor that cudnnSetTensorNdDescriptor has not set");
    return kNotSupported;
  }
  const int given = std::min(requested, shape->dimensions);
  *type = shape->type;
  *dimensions = shape->dimensions;
  std::copy_n(shape->sizes, given, sizes);
  std::copy_n(shape->strides, given, strides);
  return kSuccess;
}

EXPORTED int cudnnSetRNNDataDescriptor(SequenceShape* sequences, int, int, int longest, int batch, int,
                                       const int* lengths, void*) {
  if (sequences == nullptr || longest < 1 || batch < 1 || lengths == nullptr) return kBadParameter;
  sequences->steps = 0;
  for (int i = 0; i < batch; ++i) sequences->steps += static_cast<std::size_t>(lengths[i]);
  return kSuccess;
}

EXPORTED int cudnnSetRNNDescriptor_v8(NetworkDescriptor* descriptor, int, int cell, int bias, int direction, int input,
                                      int type, int, int, std::int32_t input_size, std::int32_t hidden_size,
                                      std::int32_t projected_size, std::int32_t layers, void*, std::uint32_t) {
  if (descriptor == nullptr || input_size < 1 || hidden_size < 1 || projected_size < 0 || layers < 1)
    return kBadParameter;
  RecurrentNetwork& network = descriptor->network;
  descriptor->type = type;
  network.cell = cell;
  network.bias = bias;
  network.input = input;
  network.directions = direction == 1 ? 2 : 1;  // CUDNN_BIDIRECTIONAL
  network.layers = layers;
  network.element_bytes = bytes_of(type);
  network.input_size = static_cast<std::size_t>(input_size);
  network.hidden_size = static_cast<std::size_t>(hidden_size);
  network.output_size = static_cast<std::size_t>(projected_size > 0 ? projected_size : hidden_size);
  return kSuccess;
}

EXPORTED int cudnnGetRNNWeightSpaceSize(void*, const NetworkDescriptor* descriptor, std::size_t* bytes) {
  if (descriptor == nullptr || bytes == nullptr) return kBadParameter;
  *bytes = weight_bytes(descriptor->network);
  return kSuccess;
}

EXPORTED int cudnnGetRNNWeightParams(void*, const NetworkDescriptor* descriptor, std::int32_t pseudo_layer, std::size_t,
                                     const char* weights, std::int32_t linear_layer, TensorShape* matrix_shape,
                                     const void** matrix, TensorShape* bias_shape, const void** bias) {
  if (descriptor == nullptr) return kBadParameter;
  const RecurrentNetwork& network = descriptor->network;
  give(matrix_of(network, pseudo_layer, linear_layer), descriptor->type, weights, matrix_shape, matrix);
  give(bias_of(network, pseudo_layer, linear_layer), descriptor->type, weights, bias_shape, bias);
  return kSuccess;
}

EXPORTED int cudnnGetRNNTempSpaceSizes(void*, const NetworkDescriptor* descriptor, int mode,
                                       const SequenceShape* sequences, std::size_t* work, std::size_t* reserve) {
  if (descriptor == nullptr || sequences == nullptr) return kBadParameter;
  const RecurrentSpaces spaces =
      spaces_of(descriptor->network, sequences->steps, mode == 1);  // CUDNN_FWD_MODE_TRAINING
  if (work != nullptr) *work = spaces.work_bytes;
  if (reserve != nullptr) *reserve = spaces.reserve_bytes;
  return kSuccess;
}
