"""Lets ``python FOLDER COMMAND`` run the agent, whatever the working folder is."""

from eagle3_agent.__main__ import main

if __name__ == "__main__":
    main()
