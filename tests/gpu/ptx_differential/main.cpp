// Compares a GPU's and the software GPU's results for the same PTX: every instruction of the table over boundary and
// random values, and random programs of them with branches, loops, functions, and operations of warps and blocks.
//
// ptx_differential
//   [--software LIBRARY]  both in this process: natively on this machine's GPU, and on the software GPU
//   --native LIBRARY      libcuda.so.1, or another; `none`: the software GPU alone
//   --record FILE         also writes a hash of each of the GPU's results
//   --against FILE        also compares the software GPU's results with such a file, using its numbers
//   --seed N  --inputs N  --programs N  what is tested, and how much
//   --only TEXT           only instructions whose line contains it, and no programs
//   --examples N          disagreements to show per instruction; of programs the first of each is shown
//   --table               a summary row for every instruction, not only for those with differences
//   --dump FOLDER         only writes the PTX, for inspection with an assembler
//
// A program whose results differ runs natively once more, without the driver's optimizations. If those results match
// the software GPU's, the assembler has changed the program's meaning. The record then holds them, marked as such, and
// the summary attributes the threads to the optimizer.
//
// Exit status: 0 when nothing differs but the bits of NaNs, and neither side alone refuses anything.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "tests/gpu/ptx_differential/device.h"
#include "tests/gpu/ptx_differential/kernels.h"
#include "tests/gpu/ptx_differential/programs.h"

using namespace gpupool::differential;

namespace {

struct Options {
    std::string native = "libcuda.so.1", software, record, against, only, dump;
    std::uint64_t seed = 1;
    unsigned inputs = 2048, programs = 200, examples = 3;
    unsigned recorded_programs = 0;  // the number of programs in a record
    bool table = false;
};

// The results of all instructions of one name.
struct Row {
    std::uint64_t compared = 0, different = 0, optimizer = 0, other_nan = 0, outside = 0;
    std::vector<std::string> examples, refused;
};

constexpr unsigned kKernelsPerModule = 24;
constexpr unsigned kThreadsPerProgram = 256;
const std::string kUnoptimized = " unoptimized";  // appended to a program's name in a record

// Neighbouring seeds give the same random numbers shifted by one, so programs do not use neighbours.
enum class Use : std::uint64_t { text, inputs };
std::uint64_t program_seed(const Options& options, unsigned number, Use use) {
    const std::uint64_t parts[] = {options.seed, number, static_cast<std::uint64_t>(use)};
    return hash_bytes(parts, sizeof parts);
}

std::string hexadecimal(std::uint64_t value, Kind kind) {
    char text[32];
    const unsigned bits = width_bits(kind);
    snprintf(text, sizeof text, "0x%0*llx", static_cast<int>(bits < 4 ? 1 : bits / 4),
             static_cast<unsigned long long>(value));
    return text;
}

class Test {
  public:
    explicit Test(Options options)
        : options_(std::move(options)), instructions_(all_instructions()), ingredients_(ingredients()) {
        if (options_.native != "none") {
            native_ = std::make_unique<Device>(options_.native);
        }
        software_ = std::make_unique<Device>(options_.software);
        printf("native: %s; software: %s; seed %llu\n", native_ ? native_->name().c_str() : "none",
               software_->name().c_str(), static_cast<unsigned long long>(options_.seed));
        if (!options_.against.empty()) {
            read_record();
        }
    }

    int run() {
        std::vector<const Instruction*> chosen;
        for (const auto& instruction : instructions_) {
            if (instruction.text.find(options_.only) != std::string::npos) {
                chosen.push_back(&instruction);
            }
        }
        for (std::size_t i = 0; i < chosen.size(); i += kKernelsPerModule) {
            try_instructions(
                {chosen.begin() + static_cast<std::ptrdiff_t>(i),
                 chosen.begin() + static_cast<std::ptrdiff_t>(std::min(i + kKernelsPerModule, chosen.size()))});
        }
        if (options_.only.empty()) {
            for (unsigned i = 0; i < options_.programs; ++i) {
                try_program(i);
            }
        }
        return report(chosen.size());
    }

  private:
    static std::string module_of(const std::vector<const Instruction*>& some) {
        std::string text = module_header();
        for (std::size_t i = 0; i < some.size(); ++i) {
            text += instruction_kernel("k" + std::to_string(i), *some[i]);
        }
        return text;
    }

    void try_instructions(const std::vector<const Instruction*>& some) {
        const std::string text = module_of(some);
        std::string native_error, software_error;
        CUmodule native = native_ ? native_->load(text, native_error) : nullptr;
        CUmodule software = software_->load(text, software_error);
        const bool both = (!native_ || native != nullptr) && software != nullptr;
        if (both) {
            for (std::size_t i = 0; i < some.size(); ++i) {
                try_instruction(*some[i], "k" + std::to_string(i), native, software);
            }
        } else if (some.size() > 1) {
            for (const auto* one : some) {
                try_instructions({one});
            }
        } else {
            Row& row = rows_[some[0]->name()];
            if (!native_error.empty()) {
                row.refused.push_back(some[0]->text + "  natively: " + native_error);
            }
            if (!software_error.empty()) {
                row.refused.push_back(some[0]->text + "  by the software GPU: " + software_error);
            }
        }
        if (native != nullptr) {
            native_->unload(native);
        }
        if (software != nullptr) {
            software_->unload(software);
        }
    }

    std::vector<std::uint64_t> inputs_of(const Instruction& instruction, unsigned count) const {
        Random random(hash_bytes(instruction.text.data(), instruction.text.size()) ^ options_.seed);
        std::vector<std::uint64_t> in(std::size_t{count} * kOperandWords);
        // A single small operand is tested with all of its values.
        const bool all = instruction.operands.size() == 1 && width_bits(instruction.operands[0]) == 16;
        for (unsigned i = 0; i < count; ++i) {
            for (std::size_t k = 0; k < instruction.operands.size(); ++k) {
                in[i * kOperandWords + k] = all ? i : random_value(instruction.operands[k], random);
            }
        }
        return in;
    }

    void try_instruction(const Instruction& instruction, const std::string& entry, CUmodule native, CUmodule software) {
        const bool small = instruction.operands.size() == 1 && width_bits(instruction.operands[0]) == 16;
        const unsigned count = small ? 65536 : options_.inputs;
        const auto in = inputs_of(instruction, count);
        std::string error;
        const auto theirs =
            native_ ? native_->run(native, entry, in, count, count, true, error) : std::vector<std::uint64_t>{};
        const auto ours = software_->run(software, entry, in, count, count, true, error);
        Row& row = rows_[instruction.name()];
        if (!error.empty()) {
            row.refused.push_back(instruction.text + "  when it ran: " + error);
            return;
        }
        if (instruction.tolerance.rule == Tolerance::Rule::exact) {
            const auto hash = [&](const std::vector<std::uint64_t>& results) {
                std::uint64_t result = 0;
                for (const std::uint64_t one : results) {
                    const std::uint64_t bits = canonical(instruction.result, one);
                    result = hash_bytes(&bits, sizeof bits, result);
                }
                return result;
            };
            if (native_) {
                recorded_.emplace_back(instruction.text, hash(theirs));
            }
            if (!options_.against.empty()) {
                hold(instruction.text, hash(ours), row);
            }
        }
        row.compared += count;
        for (unsigned i = 0; i < count && native_; ++i) {
            judge(row, instruction, &in[i * kOperandWords], theirs[i], ours[i]);
        }
    }

    void judge(Row& row, const Instruction& instruction, const std::uint64_t* operands, std::uint64_t native,
               std::uint64_t software) const {
        switch (compare(instruction, operands, native, software)) {
            case Verdict::equal: return;
            case Verdict::outside: ++row.outside; return;
            case Verdict::other_nan:
                if (row.other_nan++ != 0) {
                    return;
                }
                break;
            case Verdict::different:
                if (++row.different > options_.examples) {
                    return;
                }
                break;
        }
        row.examples.push_back(difference_of(instruction, instruction.text, operands, native, software));
    }

    static std::string difference_of(const Instruction& instruction, const std::string& where,
                                     const std::uint64_t* operands, std::uint64_t native, std::uint64_t software) {
        std::string text = where + "  inputs";
        for (std::size_t k = 0; k < instruction.operands.size(); ++k) {
            text += " " + hexadecimal(operands[k], instruction.operands[k]);
        }
        return text + "  native " + hexadecimal(native, instruction.result) + "  software " +
               hexadecimal(software, instruction.result);
    }

    // Compares the software GPU's results with the record.
    void hold(const std::string& what, std::uint64_t software, Row& row) {
        const auto found = expected_.find(what);
        if (found == expected_.end()) {
            row.refused.push_back(what + "  is not in " + options_.against);
        } else if (found->second != software) {
            ++row.different;
            row.examples.push_back(what + "  some result differs from the recorded GPU's");
        }
    }

    void read_record() {
        std::ifstream file(options_.against);
        std::string line, settings;
        std::getline(file, settings);
        unsigned long long seed = 0;
        if (sscanf(settings.c_str(), "seed %llu inputs %u programs %u", &seed, &options_.inputs,
                   &options_.recorded_programs) != 3) {
            fprintf(stderr, "%s is no record of this test\n", options_.against.c_str());
            exit(2);
        }
        options_.seed = seed;
        options_.programs = std::max(options_.programs, options_.recorded_programs);
        while (std::getline(file, line)) {
            expected_[line.substr(17)] = std::stoull(line.substr(0, 16), nullptr, 16);
        }
    }

    std::string settings_line() const {
        return "seed " + std::to_string(options_.seed) + " inputs " + std::to_string(options_.inputs) + " programs " +
               std::to_string(options_.programs);
    }

    void try_program(unsigned number) {
        const Program program = random_program(program_seed(options_, number, Use::text), ingredients_);
        // The text's hash is a part of the name, so that a record of other programs is not used for these.
        const std::string what = "program " + std::to_string(number) + " " +
                                 hexadecimal(hash_bytes(program.text.data(), program.text.size()), 'L').substr(2);
        Random random(program_seed(options_, number, Use::inputs));
        std::vector<std::uint64_t> in;
        for (unsigned i = 0; i < kThreadsPerProgram; ++i) {
            for (const Kind kind : program.registers) {
                in.push_back(random_value(kind, random));
            }
        }
        Row& row = rows_["random programs"];
        std::string native_error, software_error;
        auto theirs = native_ ? run_program(*native_, program, in, true, native_error) : std::vector<std::uint64_t>{};
        const auto ours = run_program(*software_, program, in, true, software_error);
        if (!native_error.empty()) {
            row.refused.push_back(what + "  natively: " + native_error);
        }
        if (!software_error.empty()) {
            row.refused.push_back(what + "  by the software GPU: " + software_error);
        }
        if (!native_error.empty() || !software_error.empty()) {
            return;
        }
        const std::uint64_t our_hash = hash_records(program, ours);
        std::string name = what;
        if (native_ && hash_records(program, theirs) != our_hash) {
            const unsigned differing = compare_program(program, what, row, theirs, ours, in);
            const auto plain = run_program(*native_, program, in, false, native_error);
            const bool agrees = native_error.empty() && hash_records(program, plain) == our_hash;
            row.examples.push_back(what + "  " + std::to_string(differing) + " of its " +
                                   std::to_string(kThreadsPerProgram) +
                                   " threads differ; without the driver's optimizations " +
                                   (agrees ? "it agrees" : "it differs too " + native_error));
            (agrees ? row.optimizer : row.different) += differing;
            if (agrees) {
                theirs = plain, name += kUnoptimized;
            }
        }
        row.compared += kThreadsPerProgram;
        if (native_) {
            recorded_.emplace_back(name, hash_records(program, theirs));
        }
        if (!options_.against.empty() && number < options_.recorded_programs) {
            hold(expected_.contains(what + kUnoptimized) ? what + kUnoptimized : what, our_hash, row);
        }
    }

    static std::vector<std::uint64_t> run_program(Device& device, const Program& program,
                                                  const std::vector<std::uint64_t>& in, bool optimize,
                                                  std::string& error) {
        CUmodule module = device.load(program.text, error, optimize);
        if (module == nullptr) {
            return {};
        }
        auto result = device.run(module, "program", in, kThreadsPerProgram * program.words_of_a_thread(),
                                 kThreadsPerProgram, false, error);
        if (error.empty()) {
            device.unload(module);
        }
        return result;
    }

    // Shows each thread's first differing record, once for each instruction, since later ones are consequences. Returns
    // how many threads differ.
    static unsigned compare_program(const Program& program, const std::string& what, Row& row,
                                    const std::vector<std::uint64_t>& native,
                                    const std::vector<std::uint64_t>& software, const std::vector<std::uint64_t>& in) {
        const std::size_t registers = program.registers.size(), words = program.words_of_a_thread();
        std::map<std::uint64_t, unsigned> shown;  // by the step's number
        unsigned differing = 0;
        for (unsigned i = 0; i < kThreadsPerProgram; ++i) {
            std::uint64_t step = kLastRecord;
            const std::string difference = compare_thread(program, &native[i * words], &software[i * words],
                                                          {&in[i * registers], &in[i * registers] + registers}, step);
            if (difference.empty()) {
                continue;
            }
            ++differing;
            if (shown[step]++ == 0) {
                row.examples.push_back(what + " thread " + std::to_string(i) + "  " + difference);
            }
        }
        return differing;
    }

    // The first differing record, and its step's number; empty when there is none.
    static std::string compare_thread(const Program& program, const std::uint64_t* native,
                                      const std::uint64_t* software, std::vector<std::uint64_t> registers,
                                      std::uint64_t& number) {
        for (unsigned i = 0; i < program.most_records; ++i, native += 2, software += 2) {
            number = native[0];
            if (native[0] != software[0]) {
                return "went another way at record " + std::to_string(i) + ": native " + std::to_string(native[0]) +
                       ", software " + std::to_string(software[0]);
            }
            if (number >= program.steps.size()) {
                return {};  // the last record
            }
            const Step& step = program.steps[number];
            std::uint64_t operands[kOperandWords] = {};
            for (std::size_t k = 0; k < step.operands.size(); ++k) {
                operands[k] = registers[step.operands[k]];
            }
            if (compare(*step.instruction, operands, native[1], software[1]) == Verdict::different) {
                return "step " + std::to_string(number) + ": " +
                       difference_of(*step.instruction, step.text, operands, native[1], software[1]);
            }
            registers[step.result] = native[1];
        }
        return {};
    }

    static void print_row(const std::string& name, const Row& row) {
        const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
        printf("%-44s %10llu %9llu %9llu %9llu %8llu %7zu\n", name.c_str(), number(row.compared), number(row.different),
               number(row.optimizer), number(row.other_nan), number(row.outside), row.refused.size());
    }

    int report(std::size_t tried) const {
        bool good = true;
        Row all;
        printf("\n%-44s %10s %9s %9s %9s %8s %7s\n", "instruction", "compared", "different", "optimizer", "other NaN",
               "outside", "refused");
        for (const auto& [name, row] : rows_) {
            all.compared += row.compared, all.different += row.different, all.optimizer += row.optimizer;
            all.other_nan += row.other_nan, all.outside += row.outside;
            all.refused.insert(all.refused.end(), row.refused.begin(), row.refused.end());
            good = good && row.different == 0 && row.refused.empty();
            if (options_.table || row.different + row.optimizer + row.other_nan != 0 || !row.refused.empty()) {
                print_row(name, row);
            }
        }
        print_row("all", all);
        printf("%zu instructions of %zu names\n", tried, rows_.size());
        for (const auto& [name, row] : rows_) {
            for (const auto& example : row.examples) {
                printf("differs  %s\n", example.c_str());
            }
            for (const auto& one : row.refused) {
                printf("refused  %s\n", one.c_str());
            }
        }
        if (!options_.record.empty() && native_) {
            std::ofstream file(options_.record);
            file << settings_line() << "\n";
            for (const auto& [what, hash] : recorded_) {
                file << hexadecimal(hash, 'L').substr(2) << " " << what << "\n";
            }
        }
        return good ? 0 : 1;
    }

    Options options_;
    std::vector<Instruction> instructions_;
    std::vector<Ingredient> ingredients_;
    std::unique_ptr<Device> native_, software_;
    std::map<std::string, Row> rows_;
    std::vector<std::pair<std::string, std::uint64_t>> recorded_;
    std::map<std::string, std::uint64_t> expected_;
};

int dump(const Options& options) {
    const auto instructions = all_instructions();
    const auto parts = ingredients();
    for (std::size_t i = 0; i < instructions.size(); ++i) {
        std::ofstream(options.dump + "/" + std::to_string(i) + ".ptx")
            << module_header() << "// " << instructions[i].text << "\n"
            << instruction_kernel("k0", instructions[i]);
    }
    for (unsigned i = 0; i < options.programs; ++i) {
        std::ofstream(options.dump + "/program" + std::to_string(i) + ".ptx")
            << random_program(program_seed(options, i, Use::text), parts).text;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    const std::map<std::string, std::string*> texts = {{"--native", &options.native}, {"--software", &options.software},
                                                       {"--record", &options.record}, {"--against", &options.against},
                                                       {"--only", &options.only},     {"--dump", &options.dump}};
    const std::map<std::string, unsigned*> numbers = {
        {"--inputs", &options.inputs}, {"--programs", &options.programs}, {"--examples", &options.examples}};
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--table") {
            options.table = true;
        } else if (i + 1 < argc && texts.contains(name)) {
            *texts.at(name) = argv[++i];
        } else if (i + 1 < argc && numbers.contains(name)) {
            *numbers.at(name) = static_cast<unsigned>(strtoul(argv[++i], nullptr, 10));
        } else if (i + 1 < argc && name == "--seed") {
            options.seed = strtoull(argv[++i], nullptr, 10);
        } else {
            fprintf(stderr, "unknown argument %s: see the head of main.cpp\n", name.c_str());
            return 2;
        }
    }
    if (!options.dump.empty()) {
        return dump(options);
    }
    if (options.software.empty()) {
        // In the parent of the build's folder for programs.
        const std::string self = argv[0];
        const auto folder = self.rfind('/');
        options.software =
            (folder == std::string::npos ? "." : self.substr(0, folder)) + "/../lib/libgpupool-softgpu.so";
    }
    return Test(options).run();
}
