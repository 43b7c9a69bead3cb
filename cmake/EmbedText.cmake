# Writes a C++ file that holds a text: cmake -DINPUT=<file> -DOUTPUT=<file.cpp> -DNAME=<variable> -P EmbedText.cmake
#
# The variable is `extern const std::string_view <NAME>` in namespace torchup.
file(READ ${INPUT} text)
file(WRITE ${OUTPUT} "#include <string_view>\n\nnamespace torchup {\nextern const std::string_view ${NAME};\n\
const std::string_view ${NAME} = R\"embedded(${text})embedded\";\n}  // namespace torchup\n")
