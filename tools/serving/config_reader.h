// A ConfigReader reads the members of a config.json, which different models call by different names. A ModelFamily tells what
// these leave unsaid.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/report_tree.h"

namespace cachalot::tools {

class ConfigReader {
 public:
  using Names = std::initializer_list<std::string_view>;

  // `config` must live longer. `path` is for messages.
  ConfigReader(const Json& config, std::string path) : config_(config), path_(std::move(path)) {}

  // Returns the first of these members that is not null; nullptr without one.
  const Json* find(Names names) const;
  // Returns a whole number. The first throws InvalidArgument, which names the first name, where there is none. Both throw
  // it where the value is not a whole number from 0 to 2^40.
  std::int64_t number(Names names) const;
  std::int64_t number(Names names, std::int64_t otherwise) const;
  // Likewise, and throws where it is 0.
  std::int64_t positive(Names names, std::int64_t otherwise) const;
  // Throws InvalidArgument where the value is neither true nor false.
  bool flag(Names names, bool otherwise) const;
  std::string text(Names names, std::string_view otherwise) const;
  std::vector<std::string> texts(Names names) const;
  // Returns whether an array of numbers has the value.
  bool list_has(Names names, std::int64_t value) const;

  const std::string& path() const { return path_; }

 private:
  // Returns the name of find's member.
  std::optional<std::string_view> find_name(Names names) const;

  const Json& config_;
  std::string path_;
};

// The layers that keep a window of tokens alone, where the configuration has no list of the layers' types.
enum class Windows : std::uint8_t { none, all, every_second, all_but_every_nth, chunks };

// The part of a layer in the place of attention.
enum class Mixer : std::uint8_t { attention, latent, mamba1, mamba2, attention_and_mamba2 };

// A row of the table of families that model_type may name.
struct ModelFamily {
  std::string_view types;          // values of model_type, separated by spaces
  Mixer mixer = Mixer::attention;  // of layers that are not said to be attention
  Windows windows = Windows::none;
  int norms = 2;  // of a layer, as wide as a token
  int gates = 1;  // matrices of a feed-forward layer beside its first and last
  bool has_norm_bias = false;
  bool has_qkv_bias = false;
  bool has_all_biases = false;       // of attention and feed-forward layers
  bool has_output_bias = true;       // of attention, where the configuration says that attention has biases
  int qk_norms = 0;                  // 1: as wide as a head; 2: as wide as all heads
  bool wants_qk_norms_told = false;  // they are there only where the configuration says so
  bool ties = false;                 // the output layer is the embedding, unless the configuration says otherwise
  int rotaries = 1;                  // sines and cosines, of layers with a window and of the others
  bool has_shared_expert = false;    // beside the experts, as wide as one of them
};

// Returns the family of a model_type. Throws InvalidArgument, which names the known ones; `path` is for the message.
const ModelFamily& find_family(std::string_view type, const std::string& path);

}  // namespace cachalot::tools
