// cuDNN's functions about recurrent networks that say how much memory a network takes and where its parameters lie.
// Descriptors are objects: the handle is the address.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "simulator/libraries/cudnn_numbers.h"
#include "simulator/libraries/recurrent.h"
#include "simulator/notes.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace cachalot::simulator {
namespace {

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

// A parameter that the network does not have is no address, in an empty shape.
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
