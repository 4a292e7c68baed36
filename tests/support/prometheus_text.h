// Reads Prometheus' text format (version 0.0.4), and says what is wrong with a text.
//
// Ownership: values. Threads: any. Errors: `problems`.
#pragma once

#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpupool::test {

struct PrometheusText {
    using Labels = std::map<std::string, std::string>;

    std::map<std::string, std::string> types;                  // by family
    std::map<std::pair<std::string, Labels>, double> samples;  // by name and labels
    std::vector<std::string> problems;

    explicit PrometheusText(const std::string& text) {
        std::istringstream lines(text);
        if (!text.empty() && text.back() != '\n') {
            problems.emplace_back("the last line has no end");
        }
        for (std::string line; std::getline(lines, line);) {
            if (!(line.starts_with("#") ? read_comment(line) : read_sample(line))) {
                problems.push_back("not understood: " + line);
            }
        }
        for (const auto& [family, type] : types) {
            if (type == "histogram") {
                check_histogram(family);
            }
        }
    }

    // The value of a sample; nullopt: there is none.
    [[nodiscard]] std::optional<double> value(const std::string& name, const Labels& labels = {}) const {
        const auto found = samples.find({name, labels});
        return found == samples.end() ? std::nullopt : std::optional(found->second);
    }
    // The sum of the samples with these labels, whatever else they have.
    [[nodiscard]] double sum(const std::string& name, const Labels& labels = {}) const {
        double sum = 0;
        for (const auto& [key, value] : samples) {
            bool matches = key.first == name;
            for (const auto& [label, text] : labels) {
                const auto found = key.second.find(label);
                matches = matches && found != key.second.end() && found->second == text;
            }
            sum += matches ? value : 0;
        }
        return sum;
    }
    [[nodiscard]] std::size_t count(const std::string& name) const {
        std::size_t count = 0;
        for (const auto& [key, value] : samples) {
            count += key.first == name ? 1 : 0;
        }
        return count;
    }

  private:
    static bool is_name(std::string_view text) {
        for (const char c : text) {
            if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') {
                return false;
            }
        }
        return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0;
    }

    bool read_comment(const std::string& line) {
        std::istringstream words(line);
        std::string mark, what, name, rest;
        words >> mark >> what >> name;
        std::getline(words >> std::ws, rest);
        if (mark != "#" || !is_name(name) || rest.empty()) {
            return false;
        }
        if (what == "TYPE") {
            family_ = name;
            const bool is_counter = rest == "counter";
            if (is_counter != name.ends_with("_total")) {
                problems.push_back("a counter, and nothing else, has a name that ends with _total: " + name);
            }
            return (is_counter || rest == "gauge" || rest == "histogram") && types.emplace(name, rest).second;
        }
        return what == "HELP";
    }

    bool read_sample(const std::string& line) {
        std::size_t at = line.find_first_of("{ ");
        if (at == std::string::npos) {
            return false;
        }
        const std::string name = line.substr(0, at);
        Labels labels;
        if (line[at] == '{' && !read_labels(line, at, labels)) {
            return false;
        }
        if (at >= line.size() || line[at] != ' ') {
            return false;
        }
        char* end = nullptr;
        const double value = std::strtod(line.c_str() + at + 1, &end);
        if (end == line.c_str() + at + 1 || *end != '\0') {
            return false;
        }
        if (!belongs(name)) {
            problems.push_back("a sample outside of its family: " + line);
        }
        if (!samples.emplace(std::pair(name, labels), value).second) {
            problems.push_back("twice: " + line);
        }
        return is_name(name);
    }

    bool belongs(const std::string& name) const {
        const auto type = types.find(family_);
        if (type == types.end() || type->second != "histogram") {
            return type != types.end() && name == family_;
        }
        return name == family_ + "_bucket" || name == family_ + "_sum" || name == family_ + "_count";
    }

    // `at`: of the opening brace; then behind the closing one.
    static bool read_labels(const std::string& line, std::size_t& at, Labels& labels) {
        while (line[at] != '}') {
            const std::size_t equals = line.find("=\"", ++at);
            if (equals == std::string::npos || !is_name(std::string_view(line).substr(at, equals - at))) {
                return false;
            }
            const std::string name = line.substr(at, equals - at);
            std::string text;
            for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
                if (line[at] == '\\' && ++at == line.size()) {
                    return false;
                }
                text += line[at];
            }
            if (++at >= line.size() || (line[at] != ',' && line[at] != '}') || !labels.emplace(name, text).second) {
                return false;
            }
        }
        ++at;
        return true;
    }

    void check_histogram(const std::string& family) {
        std::map<double, double> buckets;
        for (const auto& [key, value] : samples) {
            if (key.first == family + "_bucket") {
                buckets[std::strtod(key.second.at("le").c_str(), nullptr)] = value;
            }
        }
        double before = 0;
        for (const auto& [bound, value] : buckets) {
            if (value < before) {
                problems.push_back("a bucket has less than the one before: " + family);
            }
            before = value;
        }
        if (buckets.empty() || value(family + "_count") != buckets.rbegin()->second) {
            problems.push_back("the last bucket has not all: " + family);
        }
    }

    std::string family_;
};

}  // namespace gpupool::test
