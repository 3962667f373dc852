/* The program memferry: see command.h. */
#include "client/command.h"

int main(int argc, char **argv)
{
    return mf_command_main(argc, argv);
}
