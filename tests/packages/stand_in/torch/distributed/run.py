"""As torch's module of this name looks from outside: options of each kind, of which PET_ variables make defaults; a
`run` and a `main` that start no job and say who they are."""

import argparse
import os


class env(argparse.Action):
    def __init__(self, dest, default=None, **options):
        super().__init__(dest=dest, default=os.environ.get(f"PET_{dest.upper()}", default), **options)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, values)


class check_env(argparse.Action):
    def __init__(self, dest, default=False, **options):
        super().__init__(dest=dest, default=bool(int(os.environ.get(f"PET_{dest.upper()}", default))), nargs=0, **options)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)


def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nnodes", action=env, default="1:1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", action=env, default="1")
    parser.add_argument("--max-restarts", "--max_restarts", action=env, type=int, default=0)
    parser.add_argument("--monitor-interval", "--monitor_interval", action=env, type=float, default=0.1)
    parser.add_argument("--master-port", "--master_port", action=env, type=int, default=None)
    parser.add_argument("--duplicate-stdout-filters", action=env, type=lambda text: text.split(","), default=[])
    parser.add_argument("-t", "--tee", action=env, default="0")
    parser.add_argument("-m", "--module", action=check_env)
    parser.add_argument("--no-python", "--no_python", action=check_env)
    parser.add_argument("--from-a-newer-torch", action=env)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def run(args):
    print("torch's own run")


def main(args=None):
    run(get_args_parser().parse_args(args))


if __name__ == "__main__":
    main()
