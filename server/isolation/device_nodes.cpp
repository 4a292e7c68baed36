#include "server/isolation/device_nodes.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace gpupool::isolation {

namespace {

// The text after "NAME:" in a GPU's file `information`, without the blanks around it.
std::string field(const std::string& line, std::string_view name) {
    if (!line.starts_with(name)) {
        return {};
    }
    const std::size_t begin = line.find_first_not_of(" \t", name.size());
    const std::size_t end = line.find_last_not_of(" \t\r");
    return begin == std::string::npos ? std::string() : line.substr(begin, end + 1 - begin);
}

std::map<std::string, unsigned> numbers_by_uuid(const std::string& folder) {
    std::map<std::string, unsigned> numbers;
    std::error_code failure;
    for (const auto& gpu : std::filesystem::directory_iterator(folder, failure)) {
        std::ifstream information(gpu.path() / "information");
        std::string uuid, number, line;
        while (std::getline(information, line)) {
            uuid = uuid.empty() ? field(line, "GPU UUID:") : uuid;
            number = number.empty() ? field(line, "Device Minor:") : number;
        }
        unsigned value = 0;
        if (!uuid.empty() && std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc()) {
            numbers.emplace(uuid, value);
        }
    }
    return numbers;
}

}  // namespace

std::vector<unsigned> gpus_of(const std::string& visible_devices, const std::string& folder) {
    if (visible_devices.empty()) {
        return {};
    }
    const auto numbers = numbers_by_uuid(folder);
    std::vector<unsigned> found;
    std::istringstream list(visible_devices);
    std::string uuid;
    while (std::getline(list, uuid, ',')) {
        const auto number = numbers.find(uuid);
        if (number == numbers.end()) {
            return {};
        }
        found.push_back(number->second);
    }
    std::sort(found.begin(), found.end());
    return found;
}

}  // namespace gpupool::isolation
