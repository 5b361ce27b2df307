// The memory of cuDNN's recurrent networks: how large their spaces are, and where their parameters lie in the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cachalot::simulator {

// What cudnnSetRNNDescriptor_v8 sets. The numbers are those of cudnn_adv.h.
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

// Returns the exact size of all parameters.
std::size_t weight_bytes(const RecurrentNetwork& network);

// Both return a parameter of a pseudo layer (a layer and a direction) by its number among the linear layers of the cell.
// cuDNN does not document the order; here all matrices come first, layer by layer, then all biases. nullopt: the network
// has no such parameter.
std::optional<RecurrentParameter> matrix_of(const RecurrentNetwork& network, int pseudo_layer, int linear_layer);
std::optional<RecurrentParameter> bias_of(const RecurrentNetwork& network, int pseudo_layer, int linear_layer);

// What cuDNN allocates beside weights and tensors. NVIDIA publishes no sizes, and they differ by version and algorithm: these are
// lower bounds, what backward needs (reserve) and what the product of a layer's inputs takes (work).
struct RecurrentSpaces {
  std::size_t work_bytes = 0;
  std::size_t reserve_bytes = 0;  // 0 for inference
};

// `steps` are those of all sequences of the batch together.
RecurrentSpaces spaces_of(const RecurrentNetwork& network, std::size_t steps, bool training);

}  // namespace cachalot::simulator
