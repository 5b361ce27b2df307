#include "simulator/libraries/recurrent.h"

namespace cachalot::simulator {
namespace {

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

// What backward needs of each step and unit: the gates, the output, and the state of an LSTM's cell or the product
// that a GRU's reset gate is applied to.
std::size_t kept_elements(const RecurrentNetwork& network) {
  const auto of_gates = static_cast<std::size_t>(gates(network)) * network.hidden_size;
  const bool has_state = network.cell == kLstm || network.cell == kGru;
  return of_gates + network.output_size + (has_state ? network.hidden_size : 0);
}

}  // namespace

std::size_t weight_bytes(const RecurrentNetwork& network) {
  const std::size_t biases =
      static_cast<std::size_t>(pseudo_layers(network)) * biases_of_layer(network) * network.hidden_size;
  return (all_matrix_elements(network) + biases) * network.element_bytes;
}

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

RecurrentSpaces spaces_of(const RecurrentNetwork& network, std::size_t steps, bool training) {
  const std::size_t of_gates = static_cast<std::size_t>(gates(network) * network.directions) * network.hidden_size;
  const std::size_t kept = static_cast<std::size_t>(pseudo_layers(network)) * kept_elements(network);
  return {.work_bytes = steps * of_gates * network.element_bytes,
          .reserve_bytes = training ? steps * kept * network.element_bytes : 0};
}

}  // namespace cachalot::simulator
