// The headers of *.safetensors: the name, the type and the shape of each tensor, in front of their bytes.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/serving/served_model.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;

std::string header_of(const std::string& path) {
  constexpr std::uint64_t kMost = 100ULL << 20;
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, 8> length{};
  file.read(reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t bytes = 0;
  for (std::size_t i = length.size(); i-- > 0;) bytes = bytes << 8 | length[i];
  CACHALOT_REQUIRE(file && bytes >= 2 && bytes <= kMost, "{}: is not a file of safetensors", path);
  std::string header(bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(bytes));
  CACHALOT_REQUIRE(bool(file), "{}: ends within its header", path);
  return header;
}

// Parts of the names of tensors that tensor parallelism leaves whole on each GPU.
constexpr std::array<std::string_view, 8> kReplicated = {"norm",     "router",    "mlp.gate.",          ".gate.weight",
                                                         "q_a_proj", "kv_a_proj", "shared_expert_gate", "A_log"};

Split split_of(std::string_view name) {
  const auto is_in = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (std::ranges::any_of(kReplicated, is_in)) return Split::replicated;
  return is_in("k_proj") || is_in("v_proj") ? Split::by_kv_head : Split::sharded;
}

Tensor tensor_of(const std::string& path, const std::string& name, const Json& entry) {
  const auto offsets = entry.find("data_offsets");
  const bool is_good = offsets != entry.end() && offsets->is_array() && offsets->size() == 2 &&
                       offsets->at(0).is_number_unsigned() && offsets->at(1).is_number_unsigned() &&
                       offsets->at(0) <= offsets->at(1);
  CACHALOT_REQUIRE(is_good, "{}: the tensor '{:.80}' has no data_offsets", path, name);
  Tensor tensor{.name = name,
                .elements = 1,
                .split = split_of(name),
                .role = name.find("experts.") == std::string::npos ? Role::other : Role::expert};
  if (const auto shape = entry.find("shape"); shape != entry.end() && shape->is_array()) {
    for (const Json& size : *shape) tensor.elements *= size.is_number_unsigned() ? size.get<std::uint64_t>() : 1;
  }
  tensor.bytes = offsets->at(1).get<std::uint64_t>() - offsets->at(0).get<std::uint64_t>();
  return tensor;
}

}  // namespace

std::vector<Tensor> safetensors_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with("consolidated")) paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  std::vector<Tensor> tensors;
  for (const std::string& path : paths) {
    const Json header = Json::parse(header_of(path), nullptr, false);
    CACHALOT_REQUIRE(header.is_object(), "{}: its header is not JSON", path);
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__" && entry.is_object()) tensors.push_back(tensor_of(path, name, entry));
    }
  }
  return tensors;
}

}  // namespace cachalot::tools
