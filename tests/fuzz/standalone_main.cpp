// Runs a fuzz target without libFuzzer: standalone RUNS [SEED_FILE...]. Inputs are random bytes and mutated seeds, from
// a fixed seed, so that failures are reproducible.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;
constexpr std::size_t kMaxRandomBytes = 512;
constexpr std::size_t kHeaderBytes = 128;  // damage here has more effects than damage in a payload

Input mutate(const Input& seed, std::mt19937& random) {
    Input input = seed;
    if (random() % 4 == 0 && !input.empty()) {
        input.resize(random() % input.size());
    }
    const unsigned changes = 1 + random() % 8;
    for (unsigned i = 0; i < changes && !input.empty(); ++i) {
        const std::size_t range = random() % 2 == 0 ? std::min(input.size(), kHeaderBytes) : input.size();
        const std::size_t at = random() % range;
        static constexpr std::uint8_t kEdges[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
        input[at] = random() % 2 == 0 ? kEdges[random() % std::size(kEdges)] : static_cast<std::uint8_t>(random());
    }
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned long runs = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
    std::vector<Input> seeds(1);
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        if (!file) {
            std::cerr << "cannot read the seed " << argv[i] << "\n";
            return 1;
        }
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        LLVMFuzzerTestOneInput(seeds.back().data(), seeds.back().size());
    }
    std::mt19937 random(1);
    for (unsigned long run = 0; run < runs; ++run) {
        Input input = mutate(seeds[random() % seeds.size()], random);
        if (input.empty()) {
            input.resize(random() % kMaxRandomBytes);
            for (auto& byte : input) {
                byte = static_cast<std::uint8_t>(random());
            }
        }
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    std::cout << runs << " inputs\n";
    return 0;
}
