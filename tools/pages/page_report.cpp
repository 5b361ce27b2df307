#include "tools/pages/page_report.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "base/check.h"
#include "tools/output_file.h"
#include "tools/pages/page_data.h"

namespace cachalot::tools {

void add_runs(PageReport& report, const History& history) {
  const std::string file = std::filesystem::path(history.path).filename().string();
  for (const DeviceHistory& device : history.devices) {
    const std::string name = history.devices.size() == 1 ? file : fmt::format("{}, device {}", file, device.device);
    report.runs.push_back({.history = &history, .device = &device, .name = name});
  }
  for (const DeviceHistory& host : history.host) {
    report.runs.push_back(
        {.history = &history, .device = &host, .name = fmt::format("{}, pinned host memory", file), .is_host = true});
  }
}

namespace {

std::string deflated(std::string_view bytes) {
  uLongf size = compressBound(bytes.size());
  std::string result(size, '\0');
  const int outcome = compress2(reinterpret_cast<Bytef*>(result.data()), &size,
                                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), /*level=*/6);
  if (outcome != Z_OK) throw std::bad_alloc();  // the buffer is large enough
  result.resize(size);
  return result;
}

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t given = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = (group << 8) | (k < given ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) text += k <= given ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(std::string(hex.substr(i, 2)).c_str(), nullptr, 16));
  }
  return bytes;
}

// The element that holds the file, as its kind needs it; `hash` allows it.
struct Element {
  std::string html;
  std::string hash;
};

Element element_of(const EmbeddedFile& file) {
  const std::string_view tag = file.name.ends_with(".css") ? "style" : "script";
  return {.html = fmt::format("<{0}>{1}</{0}>\n", tag, file.text),
          .hash = fmt::format(" 'sha256-{}'", base64(bytes_of_hex(file.sha256_hex)))};
}

void replace(std::string& text, std::string_view marker, std::string_view by) {
  const std::size_t at = text.find(marker);
  CACHALOT_REQUIRE(at != std::string::npos, "page.html does not have {}", marker);
  text.replace(at, marker.size(), by);
}

}  // namespace

std::string html_page(const PageReport& report, const CategoryRules& rules) {
  std::string page;
  std::array<std::string, 2> elements;  // styles, scripts
  std::array<std::string, 2> hashes;
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.ends_with(".html")) {
      page = file.text;
      continue;
    }
    const Element element = element_of(file);
    const std::size_t kind = file.name.ends_with(".css") ? 0 : 1;
    elements[kind] += element.html;
    hashes[kind] += element.hash;
  }
  replace(page, "{style hashes}", hashes[0]);
  replace(page, "{script hashes}", hashes[1]);
  replace(page, "<!-- styles -->\n", elements[0]);
  replace(page, "<!-- scripts -->\n", elements[1]);
  replace(page, "{data}", base64(deflated(page_data(report, rules))));  // last: it is the largest
  return page;
}

void write_page(const std::string& path, const PageReport& report, const CategoryRules& rules) {
  const std::string page = html_page(report, rules);
  OutputFile file(path, "--html");
  file.write(page);
  file.finish();
}

}  // namespace cachalot::tools
