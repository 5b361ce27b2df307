// The message of a reader about a file that it refuses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "cachalot/errors.h"

namespace cachalot::tools {

// The message, which begins with the path and `separator`, without the two; "" when there is no complaint.
template <typename Read>
std::string complaint_about(const std::string& path, std::string_view separator, Read&& read) {
  try {
    read();
    return "";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    const std::string before = path + std::string(separator);
    EXPECT_EQ(message.rfind(before, 0), 0u) << "the message must begin with the file: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), path.size() + 300) << message;
    return message.substr(std::min(message.size(), before.size()));
  }
}

}  // namespace cachalot::tools
